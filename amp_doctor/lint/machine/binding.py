"""Values -> variables, attributes and items; and what happens to `p.grad` when it is read or changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.events import GradRead, Operation
from amp_doctor.lint.machine import arithmetic, containers, evaluate
from amp_doctor.lint.machine.ownership import owners_of
from amp_doctor.lint.objects import (
    Items,
    Literal,
    Object,
    Tensor,
    Value,
    text,
)
from amp_doctor.lint.trace import (
    Attr,
    Augment,
    Display,
    Item,
    Name,
    Star,
    Term,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def bind(m: Interpreter, target: Term, value: Value, state: State, at: int) -> None:
    """Give a value to a target: a name, an attribute, an item, or several at once."""
    match target:
        case Name(_, name) if name[0] == "%":
            state.temps[(m.here, name)] = value
        case Name(_, name):
            frame = m.here
            if (frame, f"{name}%global") in state.env:
                frame = m.root(frame)
            state.env[(frame, name)] = value
        case Attr(attr_at, base, name):
            owner = evaluate.evaluate(m, base, state)
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
            containers.store(m, target, value, state, at)
        case Display(_, _, items):
            containers.unpack(m, items, value, state, at)
        case Star(_, inner):
            bind(m, inner, value, state, at)
        case _:
            evaluate.evaluate(m, target, state)


def augment(m: Interpreter, leaf: Augment, state: State) -> None:
    """`target op= value`; a gradient that is changed so is reported as read or changed."""
    value = evaluate.evaluate(m, leaf.value, state)
    target = leaf.target
    if isinstance(target, Attr) and target.name == "grad":
        old = evaluate.evaluate(m, target, state)
        if isinstance(old, Object):
            linear = leaf.op in ("Divide", "Multiply") and not isinstance(value, Tensor)
            rescale = isinstance(value, Object) and value.role == "scale"
            read_gradient(m, old, "rescale" if rescale else "linear" if linear else "write", leaf.at, state)
        return
    old = evaluate.evaluate(m, target, state)
    if isinstance(old, Object) and old.role == "gradient":
        read_gradient(m, old, "linear" if leaf.op in ("Divide", "Multiply") else "write", leaf.at, state)
        return
    if isinstance(old, Items) and isinstance(value, Items) and leaf.op == "Add":
        bind(m, target, Items(old.kind, (*old.items, *value.items), old.exact and value.exact), state, leaf.at)
        return
    if isinstance(old, Tensor) or isinstance(value, Tensor):
        result = arithmetic.tensor_operation(leaf.at, leaf.op, old, value, state)
        if isinstance(old, Tensor):
            # In place: the target keeps its dtype.
            result = replace(result, dtype=old.dtype, sure=old.sure, tags=result.tags | (old.tags & {"zeros"}))
        # `x[part] += y` adds to one part of x: another part may take the next.
        op = f"{leaf.op}[]=" if isinstance(target, Item) else f"{leaf.op}="
        m.emit(Operation(leaf.at, op, old, value, result), state)
        bind(m, target, result, state, leaf.at)
        return
    if isinstance(old, Object) and old.role == "scale":
        return
    bind(m, target, evaluate.fresh(m, f"value@{leaf.at}", term_name(target), state), state, leaf.at)


def read_gradient(m: Interpreter, gradient: Object, how: str, at: int, state: State) -> None:
    """`p.grad` is looked at or changed; afterwards a rescaled gradient is nobody's business."""
    of = gradient.fact("of")
    if isinstance(of, Tensor) and "param" not in of.tags and not of.sources:
        return
    owners = owners_of(state, of) if of is not None else ()
    m.emit(GradRead(at, how, owners), state)
    if how == "rescale":
        state.protocol = state.protocol.unknown()


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
