"""Python's own functions, as far as they carry tracked objects or read tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint.events import (
    Args,
    OpCall,
)
from amp_doctor.lint.machine import arguments, binding, evaluate, loops, tensors
from amp_doctor.lint.objects import (
    FALSE,
    NONE,
    TRUE,
    Api,
    Class,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
    Tensor,
    Value,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.calls import Outcome
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def builtin(m: Interpreter, at: int, name: str, args: Args, state: State) -> Outcome:
    """Call one of the functions that need no import."""
    plain = arguments.positional(args)
    first = plain[0] if plain else None
    if name == "super":
        receiver = _self_of(m, state)
        if isinstance(receiver, Object) and receiver.cls is not None and m.stack[-1].function.owner is not None:
            owner = Class(m.stack[-1].function.owner, m.parents.get(m.here, receiver.cls.frame))
            return [(Object("super", f"super({receiver.oid})", facts=(("self", receiver),), cls=owner), state)]
        return [(Symbol(f"super@{m.here}"), state)]
    if name == "enumerate" and first is not None:
        return [(_enumerated(m, at, first, state), state)]
    if name == "zip":
        return [(_zipped(m, at, plain, state), state)]
    if name in ("list", "tuple", "set", "sorted", "reversed", "iter", "frozenset") and first is not None:
        if isinstance(first, Items):
            items = tuple(reversed(first.items)) if name == "reversed" else first.items
            return [(Items("list", items, first.exact), state)]
        return [(first, state)]
    if name in ("list", "dict", "set", "tuple") and not args:
        return [(Table(()) if name == "dict" else Items(name, ()), state)]
    if name == "dict":
        pairs = tuple((Literal(key), value) for key, value in args if key not in (None, "*", "**"))
        base = first.pairs if isinstance(first, Table) else ()
        return [(Table((*base, *pairs), first is None or isinstance(first, Table)), state)]
    if name == "filter" and len(plain) > 1:
        return [(plain[1], state)]
    if name == "map" and len(plain) > 1:
        return [(arguments.opaque(m, at, tuple((None, value) for value in plain[1:]), state), state)]
    if name == "id":
        return [(Symbol(f"id({text(first)})"), state)]
    if name == "bool" and first is not None:
        return [(first if not isinstance(first, Tensor) else evaluate.fresh(m, f"call@{at}", "", state), state)]
    if name in ("float", "int", "len", "str", "repr", "round"):
        if isinstance(first, Literal) and name in ("float", "int"):
            try:
                return [(Literal({"float": float, "int": int}[name](first.value), at), state)]
            except (TypeError, ValueError):
                pass
        if isinstance(first, Items) and first.exact and name == "len":
            return [(Literal(len(first.items)), state)]
        if isinstance(first, Tensor):
            m.emit(OpCall(at, f"builtins.{name}", None, args, NONE, True), state)
            found = evaluate.fresh(m, f"call@{at}", "", state)
            return [(Symbol(f"len({found.key})", found.name) if name == "len" else found, state)]
        if isinstance(first, Object) and first.role == "gradient":
            binding.read_gradient(m, first, "read", at, state)
        return [(Symbol(f"{name}({text(first)})"), state)]
    if name in ("sum", "max", "min", "abs", "next"):
        inputs = tensors.tensors_in(plain)
        if inputs:
            if name == "next":
                return [(inputs[0], state)]
            return [(tensors.op_result("add", inputs, state, at, mixed=True), state)]
        if name == "next" and isinstance(first, Object) and first.role == "params":
            return [(Object("param", f"{first.oid}[]", facts=first.facts, at=at), state)]
        return [(evaluate.fresh(m, f"call@{at}", "", state), state)]
    if name in ("isinstance", "hasattr", "callable"):
        answer = _isinstance(plain) if name == "isinstance" else None
        if (
            name == "hasattr"
            and isinstance(first, Object)
            and first.role == "device"
            and plain[1:] == [Literal("type")]
        ):
            answer = TRUE
        return [(answer or Symbol(f"{name}({','.join(text(value) for value in plain)})"), state)]
    if name == "getattr" and len(plain) > 1:
        if isinstance(plain[1], Literal) and isinstance(plain[1].value, str):
            return [(evaluate.attribute(m, plain[0], plain[1].value, at, state), state)]
        return [(Symbol(f"getattr({text(plain[0])},{text(plain[1])})"), state)]
    if name == "setattr" and len(plain) > 2 and isinstance(plain[1], Literal):
        state.heap[(text(plain[0]), str(plain[1].value))] = plain[2]
        return [(NONE, state)]
    if name in ("print", "str", "repr", "open", "vars", "type", "range", "any", "all"):
        for value in plain:
            if isinstance(value, Object) and value.role == "gradient":
                binding.read_gradient(m, value, "read", at, state)
        if name == "print":
            m.emit(OpCall(at, "builtins.print", None, args, NONE, False), state)
        return [(evaluate.fresh(m, f"call@{at}", "", state), state)]
    return [(arguments.opaque(m, at, args, state), state)]


def _isinstance(plain: list[Value]) -> Value | None:
    if len(plain) == 2 and isinstance(plain[0], Object) and isinstance(plain[1], Class) and plain[0].cls is not None:
        return TRUE if plain[0].cls.definition is plain[1].definition else None
    if len(plain) == 2 and isinstance(plain[0], Items | Table | Literal) and isinstance(plain[1], Class):
        return FALSE
    if len(plain) == 2 and isinstance(plain[1], Api) and plain[1].name in ("builtins.str", "torch.device"):
        if isinstance(plain[0], Object) and plain[0].role == "device":
            return TRUE if plain[1].name == "torch.device" else FALSE
        if isinstance(plain[0], Literal):
            return TRUE if plain[1].name == "builtins.str" and isinstance(plain[0].value, str) else FALSE
    return None


def _self_of(m: Interpreter, state: State) -> Value | None:
    if not m.stack or not m.stack[-1].function.params:
        return None
    return state.env.get((m.here, m.stack[-1].function.params[0].name))


def _enumerated(m: Interpreter, at: int, source: Value, state: State) -> Value:
    known = loops.known_elements(source)
    if known is not None and isinstance(source, Items) and source.exact:
        return Items("list", tuple(Items("tuple", (Literal(n), part)) for n, part in enumerate(known)))
    index = Symbol(f"index@{at}", "index")
    if known is not None and _objects(known):
        return Items("list", tuple(Items("tuple", (index, part)) for part in known), False)
    element = Items("tuple", (index, loops.element_of(m, source, at, state)))
    return Object("iter", f"enumerate@{at}", facts=(("element", element),))


def _objects(parts: list[Value]) -> bool:
    """Several optimizers and the like: each is met on a turn of its own."""
    return len(parts) > 1 and any(isinstance(part, Object) for part in parts)


def _zipped(m: Interpreter, at: int, sources: list[Value], state: State) -> Value:
    known = [loops.known_elements(source) for source in sources]
    lists = [part for part in known if part is not None]
    if lists and len(lists) == len(sources):
        exact = all(isinstance(source, Items) and source.exact for source in sources)
        return Items("list", tuple(Items("tuple", parts) for parts in zip(*lists, strict=False)), exact)
    if any(_objects(part) for part in lists):
        turns = [
            Items(
                "tuple",
                tuple(
                    part[n] if part is not None else loops.element_of(m, source, at, state, n == 0)
                    for part, source in zip(known, sources, strict=True)
                ),
            )
            for n in range(min(len(part) for part in lists))
        ]
        return Items("list", tuple(turns), False)
    element = Items(
        "tuple",
        tuple(
            part[0] if part else loops.element_of(m, source, at, state)
            for part, source in zip(known, sources, strict=True)
        ),
    )
    return Object("iter", f"zip@{at}", facts=(("element", element),))
