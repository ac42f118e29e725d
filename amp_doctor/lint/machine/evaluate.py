"""Terms -> values: names, attributes and the rest by the kind of term; and new unknown values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.assume import negate
from amp_doctor.lint.machine import arithmetic, classes, containers, marks, tensors
from amp_doctor.lint.objects import (
    FP32,
    Api,
    Class,
    Code,
    Literal,
    Method,
    Object,
    Symbol,
    Tensor,
    Test,
    Value,
    text,
)
from amp_doctor.lint.trace import (
    Attr,
    Binary,
    Boolean,
    Closure,
    Compare,
    Const,
    Display,
    Item,
    Mapping,
    Name,
    Opaque,
    Star,
    Term,
    Unary,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
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
            return containers.item(m, term, state)
        case Display(_, kind, items):
            return containers.display(m, kind, items, state)
        case Mapping(at, pairs):
            return containers.mapping(m, at, pairs, state)
        case Binary(at, op, left, right):
            a, b = evaluate(m, left, state), evaluate(m, right, state)
            return arithmetic.binary(m, at, op, a, b, state, fold=isinstance(left, Const) and isinstance(right, Const))
        case Unary(at, op, operand):
            value = evaluate(m, operand, state)
            if op == "Not":
                return negate(value)
            if isinstance(value, Literal) and op == "Minus" and isinstance(value.value, int | float):
                return Literal(-value.value, at)
            return value if isinstance(value, Tensor) else Symbol(f"{op}({text(value)})", m.name_of(value))
        case Compare(at, op, left, right):
            return arithmetic.compare(m, at, op, evaluate(m, left, state), evaluate(m, right, state), state)
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
    """`base.name` of any value."""
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
    """`base.name` of an object: of its class, or of what its role says."""
    if base.role == "super":
        return Method(base, name, at)
    if base.cls is not None:
        found = classes.find_method(m, base.cls, name, state)
        if found is not None:
            code = Code(found[0], found[1], base)
            if any(isinstance(d, Name) and d.id in ("property", "cached_property") for d in found[0].decorators):
                return classes.property_value(m, code, base, state)
            if any(isinstance(d, Name) and d.id == "staticmethod" for d in found[0].decorators):
                return Code(found[0], found[1])
            return code
        value = classes.class_attribute(m, base.cls, name, state)
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
