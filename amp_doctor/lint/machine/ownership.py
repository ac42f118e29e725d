"""Which optimizers own which parameters, and which of them a backward reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.objects import Literal, Object, Symbol, Tensor, Value, flat
from amp_doctor.lint.typestate import ANY

if TYPE_CHECKING:
    from amp_doctor.lint.state import State


def modules_of(value: Value | None) -> frozenset[str]:
    """The names of the modules whose parameters a value stands for: params, a model, lists of them."""
    found: set[str] = set()
    for item in flat(value):
        if isinstance(item, Object):
            if item.role in ("params", "param", "gradient"):
                of = item.fact("of")
                found |= modules_of(of) if of is not None else set()
            elif item.role in ("module", "instance", "optimizer"):
                found.add(item.oid)
        elif isinstance(item, Symbol):
            found.add(item.key)
        elif isinstance(item, Tensor):
            found |= item.sources
    return frozenset(found)


def related(one: frozenset[str], other: frozenset[str]) -> bool:
    """True when a module of one set is, contains or is part of a module of the other."""
    return any(a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.") for a in one for b in other)


def parameters_of(state: State, oid: str) -> frozenset[str]:
    """The modules an optimizer was built from; empty when nobody saw it being built."""
    value = state.heap.get((oid, "%modules"))
    return frozenset(str(value.value).split("|")) if isinstance(value, Literal) and value.value else frozenset()


def owners_of(state: State, value: Value) -> tuple[str, ...]:
    """The optimizers known to own these parameters; () when that cannot be told."""
    modules = modules_of(value)
    if not modules:
        return ()
    found = []
    for oid, _ in state.protocol.optimizers:
        if oid != ANY and (
            related(parameters_of(state, oid), modules)
            or oid in modules
            or any(m.startswith(f"{oid}.") for m in modules)
        ):
            found.append(oid)
    return tuple(found)


def reached_by(state: State, sources: frozenset[str]) -> dict[str, bool]:
    """The optimizers a backward may reach -> whether it surely does."""
    reached: dict[str, bool] = {}
    named = [oid for oid, _ in state.protocol.optimizers if oid != ANY]
    for oid in named:
        modules = parameters_of(state, oid)
        if modules and sources:
            if related(modules, sources):
                reached[oid] = True
            elif len(named) == 1:
                reached[oid] = False
        else:
            reached[oid] = len(named) == 1
    reached[ANY] = not named
    return reached


def appear(state: State, optimizer: Object) -> None:
    """An optimizer nobody has named before: it has been through what the unnamed one has."""
    if optimizer.oid not in dict(state.protocol.optimizers):
        named = [oid for oid, _ in state.protocol.optimizers if oid != ANY]
        before = state.protocol.get(ANY)
        state.protocol = state.protocol.put(optimizer.oid, replace(before, linked=before.linked and not named))
