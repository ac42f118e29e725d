"""Lists and dicts: what reading them gives, and what changing them does to whoever holds them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.events import (
    Args,
)
from amp_doctor.lint.machine import arguments, binding, evaluate
from amp_doctor.lint.objects import (
    NONE,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
    Tensor,
    Value,
    text,
)
from amp_doctor.lint.trace import Name

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


from typing import TYPE_CHECKING

from amp_doctor.lint.events import Store
from amp_doctor.lint.trace import (
    Item,
    Star,
    Term,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def container_method(m: Interpreter, receiver: Items | Table, name: str, args: Args, state: State) -> Value:
    """Lists and dicts: reading methods have values; mutation is written back by the caller's variable."""
    first = arguments.argument(args, 0, "")
    if isinstance(receiver, Table):
        if name == "items":
            return Items("list", tuple(Items("tuple", pair) for pair in receiver.pairs), receiver.exact)
        if name == "values":
            return Items("list", tuple(value for _, value in receiver.pairs), receiver.exact)
        if name == "keys":
            return Items("list", tuple(key for key, _ in receiver.pairs), receiver.exact)
        if name in ("get", "pop") and first is not None:
            found = receiver.get(first)
            if found is not None:
                return found
            default = arguments.argument(args, 1, "default")
            return (
                (default or NONE)
                if receiver.exact and isinstance(first, Literal)
                else Symbol(f"{text(receiver)}.get({text(first)})")
            )
        if name == "copy":
            return receiver
    elif name == "copy":
        return receiver
    elif name == "pop" and receiver.items:
        return receiver.items[-1]
    mutate(m, receiver, name, args, state)
    return NONE


def mutate(m: Interpreter, receiver: Items | Table, name: str, args: Args, state: State) -> None:
    """`items.append(x)`: every variable and attribute that holds this very list holds the longer one."""
    new: Value
    first = arguments.argument(args, 0, "")
    if isinstance(receiver, Items) and name in ("append", "add", "insert") and first is not None:
        value = arguments.positional(args)[-1]
        if isinstance(value, Tensor):
            value = value.tagged("stored")
        if m.loops or len(receiver.items) > 12:
            new = Items(
                receiver.kind, receiver.items if value in receiver.items else (*receiver.items, value)[:12], False
            )
        else:
            new = Items(receiver.kind, (*receiver.items, value), receiver.exact)
    elif isinstance(receiver, Items) and name == "extend" and isinstance(first, Items):
        kept = (part.tagged("stored") if isinstance(part, Tensor) else part for part in first.items)
        new = Items(receiver.kind, (*receiver.items, *kept)[:16], receiver.exact and first.exact)
    elif isinstance(receiver, Table) and name == "update":
        extra = tuple((Literal(key), value) for key, value in args if key not in (None, "*", "**"))
        more = first.pairs if isinstance(first, Table) else ()
        new = Table((*receiver.pairs, *more, *extra), receiver.exact and (first is None or isinstance(first, Table)))
    else:
        new = replace(receiver, exact=False)
    for store in (state.env, state.heap):
        for key, value in store.items():
            if value is receiver or (value == receiver and type(value) is type(receiver)):
                store[key] = new  # type: ignore[index]


def item(m: Interpreter, term: Item, state: State) -> Value:
    """`base[index]`."""
    base = evaluate.evaluate(m, term.base, state)
    index = tuple(evaluate.evaluate(m, part, state) if part is not None else None for part in term.index)
    first = index[0] if len(index) == 1 else None
    if isinstance(base, Items) and isinstance(first, Literal) and isinstance(first.value, int):
        try:
            return base.items[first.value]
        except IndexError:
            return Symbol(f"item@{term.at}")
    if isinstance(base, Items) and index == (None,):
        return Items(base.kind, base.items, False)
    if isinstance(base, Items) and base.items:
        # An unknown index: any of them; if they are alike one stands for all.
        return (
            base.items[0]
            if len({type(part) for part in base.items}) == 1 and len(base.items) == 1
            else Symbol(f"{text(base)}[]")
        )
    if isinstance(base, Table):
        if first is not None:
            value = base.get(first)
            if value is not None:
                return value
            made = [part for _, part in base.pairs if isinstance(part, Tensor)]
            if made and len(made) == len(base.pairs) and len({part.dtype for part in made}) == 1:
                return made[0]  # whichever it is, it is one of these
            if isinstance(first, Symbol) and base.pairs:
                return Symbol(f"{text(base)}[{text(first)}]")
        return Symbol(f"{text(base)}[]@{term.at}")
    if isinstance(base, Tensor):
        return replace(base)  # a part of it: another object, so that `x[a] * x[b]` is no square
    if isinstance(base, Object) and base.role == "gradient":
        return base
    if isinstance(base, Object) and base.role == "module":
        children = base.fact("children")
        if (
            isinstance(children, Items)
            and isinstance(first, Literal)
            and isinstance(first.value, int)
            and children.exact
        ):
            try:
                return children.items[first.value]
            except IndexError:
                pass
    label = "".join(f"[{text(part)}]" for part in index)
    name = str(first.value) if isinstance(first, Literal) else m.name_of(base)
    key = (text(base), label)
    return state.heap.get(key) or Symbol(f"{text(base)}{label}", name)


def display(m: Interpreter, kind: str, items: tuple[Term, ...], state: State) -> Value:
    """A list, tuple or set written out; one that unpacks something unknown is not exact."""
    values: list[Value] = []
    exact = True
    for part in items:
        value = evaluate.evaluate(m, part, state)
        if isinstance(part, Star):
            if isinstance(value, Items):
                values += value.items
                exact = exact and value.exact
            else:
                values.append(value)
                exact = False
        else:
            values.append(value)
    return Items(kind, tuple(values), exact)


def mapping(m: Interpreter, at: int, pairs: tuple[tuple[Term | None, Term], ...], state: State) -> Value:
    """A dict written out."""
    known: list[tuple[Value, Value]] = []
    exact = True
    for key, part in pairs:
        value = evaluate.evaluate(m, part, state)
        if key is not None:
            known.append((evaluate.evaluate(m, key, state), value))
        elif isinstance(value, Table):
            known += value.pairs
            exact = exact and value.exact
        else:
            exact = False
    return Table(tuple(known), exact, at)


def store(m: Interpreter, target: Item, value: Value, state: State, at: int) -> None:
    """`target[index] = value`, remembered where the target is a known dict or list, or something unknown."""
    base = evaluate.evaluate(m, target.base, state)
    index = tuple(evaluate.evaluate(m, part, state) if part is not None else None for part in target.index)
    m.emit(Store(at, base, index, value), state)
    if isinstance(base, Table) and len(index) == 1 and index[0] is not None:
        binding.bind(m, target.base, replace(base, pairs=(*base.pairs, (index[0], value))), state, at)
    elif (
        isinstance(base, Items)
        and len(index) == 1
        and isinstance(index[0], Literal)
        and isinstance(index[0].value, int)
    ):
        items = list(base.items)
        if -len(items) <= index[0].value < len(items):
            items[index[0].value] = value
            binding.bind(m, target.base, Items(base.kind, tuple(items), base.exact), state, at)
    elif isinstance(base, Symbol):
        label = "".join(f"[{text(part)}]" for part in index)
        state.heap[(text(base), label)] = value


def unpack(m: Interpreter, targets: tuple[Term, ...], value: Value, state: State, at: int) -> None:
    """Give the parts of a value to several targets, one of which may take the rest."""
    stars = [position for position, target in enumerate(targets) if isinstance(target, Star)]
    if isinstance(value, Items) and value.exact and not stars and len(value.items) == len(targets):
        for target, known in zip(targets, value.items, strict=True):
            binding.bind(m, target, known, state, at)
        return
    if isinstance(value, Items) and value.exact and len(stars) == 1 and len(value.items) >= len(targets) - 1:
        star = stars[0]
        tail = len(targets) - star - 1
        parts = value.items
        middle = Items("list", parts[star : len(parts) - tail])
        split = [*parts[:star], middle, *parts[len(parts) - tail :]]
        for target, known in zip(targets, split, strict=True):
            binding.bind(m, target, known, state, at)
        return
    part: Value
    for position, target in enumerate(targets):
        if isinstance(value, Tensor):
            part = value
        elif isinstance(value, Items) and not value.exact and value.items:
            part = value.items[min(position, len(value.items) - 1)]
        else:
            name = target.id if isinstance(target, Name) else ""
            token = f"{text(value)}[{position}]"
            part = Symbol(token, name)
        binding.bind(m, target, part, state, at)
