"""What a loop or comprehension runs over: its elements, one by one or one that stands for all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.fold import fold
from amp_doctor.lint.machine import binding, evaluate
from amp_doctor.lint.objects import (
    Items,
    Object,
    Symbol,
    Table,
    Tensor,
    Value,
    flat,
)
from amp_doctor.lint.trace import (
    Gather,
    Star,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


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
                return Items("tuple", (evaluate.fresh(m, f"name@{at}", "name", state), _param(plain, at)))
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
        return evaluate.fresh(m, another, name, state)
    return evaluate.fresh(m, one, name, state)


def _param(params: Object, at: int) -> Object:
    of = params.fact("of")
    facts = (("of", of),) if of is not None else ()
    return Object("param", f"{params.oid}[]", facts=facts, at=at)


def gather(m: Interpreter, node: Gather, state: State) -> list[State]:
    """A comprehension: known elements one by one, else two that stand for all."""
    source = evaluate.evaluate(m, node.source, state)
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
                binding.bind(m, node.target, value, each, node.at)
                m.calls.append(-number - 1)
                try:
                    flow = fold(node.body, [each], m)
                finally:
                    m.calls.pop()
                for end in flow.ends:
                    result = evaluate.evaluate(m, node.element, end)
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
