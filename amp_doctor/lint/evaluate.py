"""Terms to values, and values into variables, attributes and items."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amp_doctor.lint import marks, tensors
from amp_doctor.lint.assume import negate, none_test
from amp_doctor.lint.events import GradRead, Operation, Returned, Store
from amp_doctor.lint.objects import (
    FALSE,
    FP32,
    TRUE,
    Api,
    Class,
    Code,
    Items,
    Literal,
    Method,
    Object,
    Partial,
    Symbol,
    Table,
    Tensor,
    Test,
    Value,
    flat,
    text,
)
from amp_doctor.lint.trace import (
    Attr,
    Augment,
    Binary,
    Boolean,
    ClassDef,
    Closure,
    Compare,
    Const,
    Display,
    Function,
    Gather,
    Item,
    Mapping,
    Name,
    Opaque,
    Star,
    Term,
    Unary,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.lint.interpreter import Interpreter
    from amp_doctor.lint.state import State

_BUILTINS = frozenset(
    [
        "len",
        "sum",
        "zip",
        "enumerate",
        "range",
        "list",
        "tuple",
        "dict",
        "set",
        "bool",
        "float",
        "int",
        "str",
        "isinstance",
        "getattr",
        "hasattr",
        "setattr",
        "print",
        "max",
        "min",
        "next",
        "iter",
        "super",
        "id",
        "map",
        "filter",
        "sorted",
        "reversed",
        "any",
        "all",
        "type",
        "abs",
        "round",
        "repr",
        "callable",
        "open",
        "vars",
        "frozenset",
    ]
)


def evaluate(m: Interpreter, term: Term, state: State) -> Value:
    """The value of a term on this path."""
    match term:
        case Name(at, name):
            value = m.lookup(name, state)
            if value is not None:
                return value
            if name == "__name__":
                return Literal("__main__")
            if name in _BUILTINS:
                return Api(f"builtins.{name}")
            return Symbol(f"{name}~{m.root(m.here)}", name)
        case Const(at, value):
            return Literal(value, at)
        case Attr(at, base, name):
            return attribute(m, evaluate(m, base, state), name, at, state)
        case Item():
            return item(m, term, state)
        case Display(_, kind, items):
            return display(m, kind, items, state)
        case Mapping(at, pairs):
            return mapping(m, at, pairs, state)
        case Binary(at, op, left, right):
            a, b = evaluate(m, left, state), evaluate(m, right, state)
            return binary(m, at, op, a, b, state, fold=isinstance(left, Const) and isinstance(right, Const))
        case Unary(at, op, operand):
            value = evaluate(m, operand, state)
            if op == "Not":
                return negate(value)
            if isinstance(value, Literal) and op == "Minus" and isinstance(value.value, int | float):
                return Literal(-value.value, at)
            return value if isinstance(value, Tensor) else Symbol(f"{op}({text(value)})", m.name_of(value))
        case Compare(at, op, left, right):
            return compare(m, at, op, evaluate(m, left, state), evaluate(m, right, state), state)
        case Boolean(_, op, items):
            return Test(op, tuple(evaluate(m, part, state) for part in items))
        case Closure(_, function):
            return Code(function, m.here)
        case Star(_, value):
            return evaluate(m, value, state)
        case Opaque(at, parts, pieces):
            for part in parts:
                evaluate(m, part, state)
            value = fresh(m, f"value@{at}", "", state)
            if pieces:
                state.heap[(value.key, "%said")] = Literal(pieces)
            return value


def fresh(m: Interpreter, token: str, name: str, state: State) -> Symbol:
    """A new unknown value: whatever was assumed about the last one made here is forgotten."""
    token = f"{token}:{m.here}"
    state.forget(token)
    state.protocol = state.protocol.without(token)
    return Symbol(token, name)


def attribute(m: Interpreter, base: Value, name: str, at: int, state: State) -> Value:
    match base:
        case Api(api):
            return Api(f"{api}.{name}")
        case Object() | Symbol():
            if name == "grad":
                return Object("gradient", f"{text(base)}.grad", facts=(("of", base),), at=at)
            key = (text(base), name)
            if key in state.heap:
                return state.heap[key]
            if isinstance(base, Object):
                return object_attribute(m, base, name, at, state)
            return Symbol(f"{base.key}.{name}", name)
        case Tensor():
            if name == "grad":
                return Object("gradient", f"{text(base)}.grad", facts=(("of", base),), at=at)
            if name in ("T", "mT", "H", "data"):
                return base
            if name == "device":
                return Object("device", f"{text(base)}@{base.at}.device", api="torch.device")
            if name in ("real", "imag") and base.dtype == tensors.COMPLEX:
                return replace(base, dtype=FP32)
            if name in ("real", "values"):
                return base
            if name == "indices":
                return Tensor("other", at=at)
            if name == "dtype":
                return Symbol(f"dtype({base.dtype or ''}){'' if base.sure else '?'}@{base.at}", name)
            if name == "loss" and "output" in base.tags:
                # What a model returned holds its loss: of unknown precision, but computed where the model ran.
                return replace(base, dtype=None, sure=False, tags=base.tags - {"output"})
            return Symbol(f"{text(base)}@{base.at}.{name}", name)
        case Class(definition, frame):
            value = state.heap.get((text(base), name))
            if value is not None:
                return value
            if name in definition.methods:
                return Code(definition.methods[name], frame)
            return Symbol(f"{text(base)}.{name}", name)
        case _:
            return Method(base, name, at)


def object_attribute(m: Interpreter, base: Object, name: str, at: int, state: State) -> Value:
    if base.role == "super":
        return Method(base, name, at)
    if base.cls is not None:
        found = find_method(m, base.cls, name, state)
        if found is not None:
            code = Code(found[0], found[1], base)
            if any(isinstance(d, Name) and d.id in ("property", "cached_property") for d in found[0].decorators):
                return property_value(m, code, base, state)
            if any(isinstance(d, Name) and d.id == "staticmethod" for d in found[0].decorators):
                return Code(found[0], found[1])
            return code
        value = class_attribute(m, base.cls, name, state)
        if value is not None:
            return value
    if base.role == "optimizer" and name == "param_groups":
        return Symbol(f"{base.oid}.param_groups", name)
    if base.role == "param" and name == "device":
        return Object("device", f"{base.oid}.device", api="torch.device")
    if base.role == "gradient" and name in ("data",):
        return base
    if base.role == "iter":
        return Method(base, name, at)
    if base.role == "finfo":
        return marks.finfo(base, name) or Symbol(f"{base.oid}.{name}", name)
    return Symbol(f"{base.oid}.{name}", name)


def property_value(m: Interpreter, code: Code, base: Object, state: State) -> Value:
    """A property that returns a plain attribute is that attribute; any other is a symbol of its own."""
    from amp_doctor.lint.trace import Exit, Stmt

    statements = code.function.body.items
    if len(statements) == 1 and isinstance(statements[0], Stmt):
        inner = statements[0].body.items
        if len(inner) == 1 and isinstance(inner[0], Exit) and inner[0].value is not None:
            value = inner[0].value
            reading: set[int] = m.facts.setdefault("properties", set())
            own = isinstance(value, Attr) and isinstance(value.base, Name) and value.base.id == _first(code.function)
            if isinstance(value, Attr) and own and id(code.function) not in reading:
                reading.add(id(code.function))  # a property may come back to itself
                found = attribute(m, base, value.name, value.at, state)
                reading.remove(id(code.function))
                return found
    return Symbol(f"{base.oid}.{code.function.name}", code.function.name)


def _first(function: Function) -> str:
    return function.params[0].name if function.params else ""


def bases_of(m: Interpreter, cls: Class, state: State) -> list[Value]:
    """The bases of a first-party class, as values in the frame that defined it."""
    key = f"bases:{text(cls)}@{cls.definition.at}"
    if key not in m.facts:
        saved, m.stack = m.stack, []
        module = m.owners.get(cls.definition.module)
        try:
            m.facts[key] = [
                (m.project.settle(m, found) if isinstance(found, Symbol) else found)
                if found is not None
                else Symbol(term_name(term), term_name(term))
                for term in cls.definition.bases
                for found in [lookup_in(m, term, cls.frame, state, module)]
            ]
        finally:
            m.stack = saved
    result: list[Value] = m.facts[key]
    return result


def lookup_in(m: Interpreter, term: Term, frame: int, state: State, module: Any) -> Value | None:
    """Evaluate a dotted name in a given frame."""
    match term:
        case Name(_, name):
            current: int | None = frame
            while current is not None:
                value = state.env.get((current, name)) or m.globals.get(current, {}).get(name)
                if value is not None:
                    return value
                current = m.parents.get(current)
            return None
        case Attr(at, base, name):
            inner = lookup_in(m, base, frame, state, module)
            return attribute(m, inner, name, at, state) if inner is not None else None
        case _:
            return None


def find_method(m: Interpreter, cls: Class, name: str, state: State, depth: int = 0) -> tuple[Function, int] | None:
    """A method of a first-party class or of its first-party bases, with the frame it closes over."""
    if name in cls.definition.methods:
        return cls.definition.methods[name], cls.frame
    if depth < 6:
        for base in bases_of(m, cls, state):
            if isinstance(base, Class) and base.definition is not cls.definition:
                found = find_method(m, base, name, state, depth + 1)
                if found is not None:
                    return found
    return None


def class_attribute(m: Interpreter, cls: Class, name: str, state: State, depth: int = 0) -> Value | None:
    value = state.heap.get((text(cls), name))
    if value is not None or depth > 5:
        return value
    for base in bases_of(m, cls, state):
        if isinstance(base, Class):
            value = class_attribute(m, base, name, state, depth + 1)
            if value is not None:
                return value
    return None


def api_bases(m: Interpreter, cls: Class, state: State, depth: int = 0) -> list[str]:
    """The names of the library classes (and of unseen ones) that a first-party class derives from."""
    found: list[str] = []
    for base in bases_of(m, cls, state):
        if isinstance(base, Class):
            if depth < 6:
                found += api_bases(m, base, state, depth + 1)
        elif isinstance(base, (Api, Symbol)):
            found.append(base.name)
    return found


def item(m: Interpreter, term: Item, state: State) -> Value:
    base = evaluate(m, term.base, state)
    index = tuple(evaluate(m, part, state) if part is not None else None for part in term.index)
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
    values: list[Value] = []
    exact = True
    for part in items:
        value = evaluate(m, part, state)
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
    known: list[tuple[Value, Value]] = []
    exact = True
    for key, part in pairs:
        value = evaluate(m, part, state)
        if key is not None:
            known.append((evaluate(m, key, state), value))
        elif isinstance(value, Table):
            known += value.pairs
            exact = exact and value.exact
        else:
            exact = False
    return Table(tuple(known), exact, at)


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Subtract": operator.sub,
    "Multiply": operator.mul,
    "Divide": operator.truediv,
    "Power": operator.pow,
    "FloorDivide": operator.floordiv,
    "Modulo": operator.mod,
}


def binary(m: Interpreter, at: int, op: str, left: Value, right: Value, state: State, fold: bool = False) -> Value:
    if isinstance(left, Literal) and isinstance(right, Literal):
        if fold or not m.loops:
            value = _arithmetic(op, left.value, right.value)
            if value is not None:
                return Literal(value, at)
        return fresh(m, f"value@{at}", "", state)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        result = tensor_operation(m, at, op, left, right, state)
        m.emit(Operation(at, op, left, right, result), state)
        return result
    for side in (left, right):
        if isinstance(side, Object) and side.role == "gradient":
            read_gradient(m, side, "read", at, state)
            return Object("gradient", f"{side.oid}*", facts=side.facts, at=at)
        if isinstance(side, Object) and side.role == "scale":
            return side.having(op=Literal(op))
    if isinstance(left, Items) and isinstance(right, Items) and op == "Add":
        return Items(left.kind, (*left.items, *right.items), left.exact and right.exact)
    if op == "Add" and all(
        isinstance(s, Items) or (isinstance(s, Object) and s.role == "params") for s in (left, right)
    ):
        return Items("list", (left, right), False)
    if op == "BitOr" and isinstance(left, Table) and isinstance(right, Table):
        return Table((*left.pairs, *right.pairs), left.exact and right.exact)
    if op in ("BitAnd", "BitOr"):
        return Test("and" if op == "BitAnd" else "or", (left, right))
    return Symbol(f"({text(left)} {op} {text(right)})", m.name_of(left))


def _arithmetic(op: str, left: Any, right: Any) -> Any:
    function = _ARITHMETIC.get(op)
    if function is None or isinstance(left, bool) or isinstance(right, bool):
        return None
    if op == "Power" and (abs(right) > 400 if isinstance(right, int | float) else True):
        return None
    if isinstance(left, str | bytes) and op != "Add":
        return None
    try:
        return function(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return None


def tensor_operation(m: Interpreter, at: int, op: str, left: Value, right: Value, state: State) -> Tensor:
    sides = [side for side in (left, right) if isinstance(side, Tensor)]
    other = right if isinstance(left, Tensor) else left
    if isinstance(other, Object) and other.role == "scale" and op in ("Divide", "Multiply"):
        base = sides[0]
        return replace(base, scaled=None, tags=base.tags | {"rescaled"}, at=at)
    if op == "MatrixMultiply":
        return tensors.op_result("matmul", sides, state, at)
    if op == "Power":
        return marks.mark(tensors.op_result("pow", sides, state, at), "pow", sides, right)
    mixed = not isinstance(other, Tensor) and not marks.is_number(other)
    result = marks.mark(tensors.op_result(op.lower(), sides, state, at, mixed=mixed), op.lower(), sides, right)
    if op == "Divide" and isinstance(left, Tensor) and "contraction" in left.tags:
        result = result.tagged("contraction")
    if op in ("Add", "Subtract") and all("contraction" in side.tags for side in sides):
        result = result.tagged("contraction")
    return result


def compare(m: Interpreter, at: int, op: str, left: Value, right: Value, state: State) -> Value:
    none_left = isinstance(left, Literal) and left.value is None
    none_right = isinstance(right, Literal) and right.value is None
    if op in ("is", "is not", "==", "!=") and (none_left or none_right):
        value = right if none_left else left
        if isinstance(value, Object) and value.role == "gradient":
            return fresh(m, f"value@{at}", "", state)
        test = none_test(value)
        return test if op in ("is", "==") else negate(test)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        m.emit(Operation(at, op, left, right, left), state)
        return fresh(m, f"value@{at}", "", state)
    if op in ("==", "is", "!=", "is not"):
        apart = differs(left, right, state) or differs(right, left, state)
        equal: Value = FALSE if apart else Test("eq", (left, right))
        return equal if op in ("==", "is") else negate(equal)
    if op in ("in", "not in"):
        found = isinstance(left, Literal) and any(str(left.value) in piece for piece in said(right, state))
        result = TRUE if found else contained(left, right)
        return result if op == "in" else negate(result)
    if isinstance(left, Literal) and isinstance(right, Literal):
        try:
            answer = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[op](
                left.value, right.value
            )
            return Literal(bool(answer))
        except (TypeError, KeyError):
            pass
    if (isinstance(left, Object) and left.role == "scale") or (isinstance(right, Object) and right.role == "scale"):
        return fresh(m, f"value@{at}", "", state)
    return Symbol(f"({text(left)} {op} {text(right)})", m.name_of(left))


def said(value: Value, state: State) -> tuple[str, ...]:
    """The literal pieces of an f-string: they stand in it, whatever is filled in."""
    known = state.heap.get((value.key, "%said")) if isinstance(value, Symbol) else None
    return known.value if isinstance(known, Literal) else ()


def differs(value: Value, constant: Value, state: State) -> bool:
    """An f-string is no constant that lacks one of its pieces."""
    return isinstance(constant, Literal) and any(piece not in str(constant.value) for piece in said(value, state))


def contained(left: Value, right: Value) -> Value:
    if isinstance(right, Items) and right.exact:
        if all(isinstance(part, Literal | Api) for part in right.items) and right.items:
            return Test("or", tuple(Test("eq", (left, part)) for part in right.items))
        return Symbol(f"({text(left)} in {text(right)})")
    if (
        isinstance(right, Literal)
        and isinstance(left, Literal)
        and isinstance(right.value, str)
        and isinstance(left.value, str)
    ):
        return Literal(left.value in right.value)
    if isinstance(right, Table) and right.exact and isinstance(left, Literal):
        return TRUE if right.get(left) is not None else FALSE
    return Symbol(f"({text(left)} in {text(right)})")


# --- writing -------------------------------------------------------------------------------------


def bind(m: Interpreter, target: Term, value: Value, state: State, at: int) -> None:
    match target:
        case Name(_, name) if name[0] == "%":
            state.temps[(m.here, name)] = value
        case Name(_, name):
            frame = m.here
            if (frame, f"{name}%global") in state.env:
                frame = m.root(frame)
            state.env[(frame, name)] = value
        case Attr(attr_at, base, name):
            owner = evaluate(m, base, state)
            if name == "grad":
                of = owner
                drop = isinstance(value, Literal) and value.value is None
                gradient = Object("gradient", f"{text(of)}.grad", facts=(("of", of),), at=attr_at)
                read_gradient(m, gradient, "drop" if drop else "write", at, state)
                return
            if isinstance(value, Object) and value.role == "autocasted" and name == "forward":
                state.heap[(text(owner), "%autocast")] = value
            state.heap[(text(owner), name)] = value
        case Item():
            store(m, target, value, state, at)
        case Display(_, _, items):
            unpack(m, items, value, state, at)
        case Star(_, inner):
            bind(m, inner, value, state, at)
        case _:
            evaluate(m, target, state)


def store(m: Interpreter, target: Item, value: Value, state: State, at: int) -> None:
    base = evaluate(m, target.base, state)
    index = tuple(evaluate(m, part, state) if part is not None else None for part in target.index)
    m.emit(Store(at, base, index, value), state)
    if isinstance(base, Table) and len(index) == 1 and index[0] is not None:
        bind(m, target.base, replace(base, pairs=(*base.pairs, (index[0], value))), state, at)
    elif (
        isinstance(base, Items)
        and len(index) == 1
        and isinstance(index[0], Literal)
        and isinstance(index[0].value, int)
    ):
        items = list(base.items)
        if -len(items) <= index[0].value < len(items):
            items[index[0].value] = value
            bind(m, target.base, Items(base.kind, tuple(items), base.exact), state, at)
    elif isinstance(base, Symbol | Object) and not isinstance(base, Object | Tensor):
        label = "".join(f"[{text(part)}]" for part in index)
        state.heap[(text(base), label)] = value


def unpack(m: Interpreter, targets: tuple[Term, ...], value: Value, state: State, at: int) -> None:
    stars = [position for position, target in enumerate(targets) if isinstance(target, Star)]
    if isinstance(value, Items) and value.exact and not stars and len(value.items) == len(targets):
        for target, known in zip(targets, value.items, strict=True):
            bind(m, target, known, state, at)
        return
    if isinstance(value, Items) and value.exact and len(stars) == 1 and len(value.items) >= len(targets) - 1:
        star = stars[0]
        tail = len(targets) - star - 1
        parts = value.items
        middle = Items("list", parts[star : len(parts) - tail])
        split = [*parts[:star], middle, *parts[len(parts) - tail :]]
        for target, known in zip(targets, split, strict=True):
            bind(m, target, known, state, at)
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
        bind(m, target, part, state, at)


def augment(m: Interpreter, leaf: Augment, state: State) -> None:
    value = evaluate(m, leaf.value, state)
    target = leaf.target
    if isinstance(target, Attr) and target.name == "grad":
        old = evaluate(m, target, state)
        if isinstance(old, Object):
            linear = leaf.op in ("Divide", "Multiply") and not isinstance(value, Tensor)
            rescale = isinstance(value, Object) and value.role == "scale"
            read_gradient(m, old, "rescale" if rescale else "linear" if linear else "write", leaf.at, state)
        return
    old = evaluate(m, target, state)
    if isinstance(old, Object) and old.role == "gradient":
        read_gradient(m, old, "linear" if leaf.op in ("Divide", "Multiply") else "write", leaf.at, state)
        return
    if isinstance(old, Items) and isinstance(value, Items) and leaf.op == "Add":
        bind(m, target, Items(old.kind, (*old.items, *value.items), old.exact and value.exact), state, leaf.at)
        return
    if isinstance(old, Tensor) or isinstance(value, Tensor):
        if isinstance(old, Tensor):
            result = tensor_operation(m, leaf.at, leaf.op, old, value, state)
            # In place: the target keeps its dtype.
            result = replace(result, dtype=old.dtype, sure=old.sure, tags=result.tags | (old.tags & {"zeros"}))
        else:
            result = tensor_operation(m, leaf.at, leaf.op, old, value, state)
        m.emit(Operation(leaf.at, f"{leaf.op}=", old, value, result), state)
        bind(m, target, result, state, leaf.at)
        return
    if isinstance(old, Object) and old.role == "scale":
        return
    bind(m, target, fresh(m, f"value@{leaf.at}", term_name(target), state), state, leaf.at)


def read_gradient(m: Interpreter, gradient: Object, how: str, at: int, state: State) -> None:
    """`p.grad` is looked at or changed; afterwards a rescaled gradient is nobody's business."""
    of = gradient.fact("of")
    if isinstance(of, Tensor) and "param" not in of.tags and not of.sources:
        return
    from amp_doctor.lint.protocol import owners_of

    owners = owners_of(state, of) if of is not None else ()
    m.emit(GradRead(at, how, owners), state)
    if how == "rescale":
        state.protocol = state.protocol.unknown()


# --- loops and comprehensions --------------------------------------------------------------------


def known_elements(source: Value) -> list[Value] | None:
    """The elements of a sequence written out in the source, else None."""
    if isinstance(source, Items):
        if source.items and all(isinstance(part, Tensor) for item in source.items for part in flat(item)):
            return None  # batches: how many there are is not what the program is about
        return list(source.items) if source.exact or source.items else None
    if isinstance(source, Object) and source.role == "iter":
        known = source.fact("known")
        return list(known.items) if isinstance(known, Items) else None
    return None


def element_of(m: Interpreter, source: Value, at: int, state: State, first: bool = True) -> Value:
    """One element of something iterable: a new one on every turn."""
    match source:
        case Object("params"):
            if source.fact("named") is not None:
                plain = source.having()
                return Items("tuple", (fresh(m, f"name@{at}", "name", state), _param(plain, at)))
            return _param(source, at)
        case Object("iter"):
            element = source.fact("element")
            if isinstance(element, Items):
                return Items(
                    element.kind,
                    tuple(_renew(m, part, at, n, state, first) for n, part in enumerate(element.items)),
                    element.exact,
                )
            return (
                _renew(m, element, at, 0, state, first) if element is not None else _each(m, f"{at}", "", state, first)
            )
        case Tensor():
            return source
        case Items(_, items) if items and len({type(part) for part in items}) == 1:
            return items[0]
        case _:
            return _each(m, f"{at}", m.name_of(source).rstrip("s"), state, first)


def _renew(m: Interpreter, part: Value, at: int, position: int, state: State, first: bool) -> Value:
    return _each(m, f"{at}.{position}", part.name, state, first) if isinstance(part, Symbol) else part


def _each(m: Interpreter, place: str, name: str, state: State, first: bool) -> Symbol:
    """The element of this turn; an optimizer that was met on the first turn is not forgotten for the next one."""
    one, another = f"each@{place}", f"each@{place}+"
    if first:
        state.protocol = state.protocol.without(f"{another}:{m.here}")
    elif any(oid.startswith(f"{one}:{m.here}") for oid, _ in state.protocol.optimizers):
        return fresh(m, another, name, state)
    return fresh(m, one, name, state)


def _param(params: Object, at: int) -> Object:
    of = params.fact("of")
    facts = (("of", of),) if of is not None else ()
    return Object("param", f"{params.oid}[]", facts=facts, at=at)


def gather(m: Interpreter, node: Gather, state: State) -> list[State]:
    """A comprehension: known elements one by one, else two that stand for all."""
    from amp_doctor.lint.fold import fold

    source = evaluate(m, node.source, state)
    known = known_elements(source)
    exact = known is not None and isinstance(source, Items) and source.exact
    turns: list[Value | None] = list(known) if known is not None else [None]
    states = [state]
    results: list[list[Value]] = [[]]
    if known is None and isinstance(source, Object) and source.role == "params":
        exact = False
    m.loops.append(node.at)
    try:
        for number, element in enumerate(turns[:8]):
            after: list[State] = []
            collected: list[list[Value]] = []
            for each, so_far in zip(states, results, strict=True):
                value = element if element is not None else element_of(m, source, node.at, each)
                bind(m, node.target, value, each, node.at)
                m.calls.append(-number - 1)
                try:
                    flow = fold(node.body, [each], m)
                finally:
                    m.calls.pop()
                for end in flow.ends:
                    result = evaluate(m, node.element, end)
                    if isinstance(node.element, Star) and isinstance(result, Items):
                        collected.append([*so_far, *result.items])
                    else:
                        collected.append([*so_far, result])
                    after.append(end)
            states, results = after, collected
            if len(states) > 16:
                states, results = states[:16], results[:16]
    finally:
        m.loops.pop()
    for each, so_far in zip(states, results, strict=True):
        each.temps[(m.here, node.temp)] = _collected(node.kind, so_far, exact)
    return states


def _collected(kind: str, values: list[Value], exact: bool) -> Value:
    if kind == "dict":
        pairs = {part.items[0]: part.items[1] for part in values if isinstance(part, Items) and len(part.items) == 2}
        return Table(tuple(pairs.items()), exact)
    if (
        not exact
        and len(values) == 1
        and isinstance(values[0], Object)
        and values[0].role in ("optimizer", "scaler", "module", "instance")
    ):
        # Of several made in a comprehension two stand for all, so that an order between them can be seen.
        first = values[0]
        values = [first, replace(first, oid=f"{first.oid}'")]
    return Items(kind, tuple(values), exact)


# --- definitions ---------------------------------------------------------------------------------


def define_class(m: Interpreter, definition: ClassDef, state: State) -> list[State]:
    """Bind the class, and its class attributes (bodies are run in a frame of their own)."""
    from amp_doctor.lint.fold import fold
    from amp_doctor.lint.interpreter import Call

    cls = Class(definition, m.here)
    frame = m.frame(m.here, 0, definition.at)
    m.parents[frame] = m.here
    body = Function(definition.at, definition.name, (), definition.body, module=definition.module)
    m.stack.append(Call(body, frame))
    try:
        flow = fold(definition.body, [state], m)
    finally:
        m.stack.pop()
    for end in flow.ends:
        for (where, name), value in list(end.env.items()):
            if where == frame:
                if not isinstance(value, Code):
                    end.heap[(text(cls), name)] = value
                del end.env[(where, name)]
        end.env[(m.here, definition.name)] = cls
    return flow.ends


def returned(m: Interpreter, at: int, value: Value, state: State) -> None:
    if len(m.stack) == 1:
        m.emit(Returned(at, value, m.stack[0].function.name), state)


def term_name(term: Term) -> str:
    """The last written name of a target, for symbols."""
    match term:
        case Name(_, name):
            return name
        case Attr(_, _, name):
            return name
        case Item(_, base, _):
            return term_name(base)
        case _:
            return ""


__all__ = ["Partial", "bind", "evaluate"]
