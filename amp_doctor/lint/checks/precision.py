"""What the checks on casts share: which trained weights are half, and which of several codes speaks about a cast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amp_doctor.lint import apis
from amp_doctor.lint.machine import modules
from amp_doctor.lint.objects import BF16, FALSE, HALF, Literal, Object, Symbol, Value, flat, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.lint.checks.registry import Draft, Moment
    from amp_doctor.lint.state import State

LOW = (HALF, BF16)
SILENCED_BY = {
    "AMP304": ("AMP402", "AMP408"),
    "AMP401": ("AMP402", "AMP408"),
    "AMP403": ("AMP402", "AMP408"),
    "AMP404": ("AMP401", "AMP402", "AMP407", "AMP408"),
    "AMP407": ("AMP401", "AMP402", "AMP408"),
    "AMP409": ("AMP401", "AMP402", "AMP404", "AMP407", "AMP408"),
}
"""One cast, one finding: the codes that say something sharper about the same cast."""

_WITHOUT_PARAMETERS = re.compile(
    r"torch\.nn\.(\w*(ReLU|ELU)\d?|GELU|SiLU|Mish|Tanh|Sigmoid|\w*Softmax|\w*Dropout\w*|Flatten|Unflatten|Identity|"
    r"\w*Pool\dd|Upsample)$"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A module whose weights are half precision, the cast that made them so, and the module the optimizer was given."""

    module: Value
    dtype: str
    cast_at: int
    owner: Value


def trained_parts(state: State, optimizer: Object) -> list[Part]:
    """The half-precision modules among those whose parameters an optimizer was built from; frozen ones left out."""
    found = []
    for item in flat(state.heap.get((optimizer.oid, "%params"))):
        owner = item.fact("of") if isinstance(item, Object) and item.role in ("params", "param") else item
        if isinstance(owner, Symbol) or (owner is not None and modules.is_module_value(owner)):
            parts = half_parts(state, owner, owner) or _part_of_half(state, owner)
            found += [part for part in parts if part not in found]
    return found


def half_parts(state: State, module: Value, owner: Value, depth: int = 0) -> list[Part]:
    """The parts of a module that were cast to half precision and are not frozen."""
    if frozen(state, module):
        return []
    children = modules.children_of(module, state)
    own = _own(state, module)
    if own is not None and own[0] in LOW:
        children = [child for child in children if _has_parameters(child)]
        left = [child for child in children if _own(state, child) is None and not frozen(state, child)]
        return [Part(module, *own, owner)] if left or not children else []
    if depth > 4:
        return []
    return [part for child in children for part in half_parts(state, child, owner, depth + 1)]


def _part_of_half(state: State, module: Value) -> list[Part]:
    """A part of a module that was cast as a whole: `net.head` after `net.half()`."""
    if _own(state, module) is not None or frozen(state, module):
        return []
    if isinstance(module, Symbol):
        key = module.key
        while "." in key:
            key = key.rpartition(".")[0]
            own = _own(state, Symbol(key))
            if own is not None:
                return [Part(Symbol(key), *own, module)] if own[0] in LOW else []
        return []
    for holder in [*state.env.values(), *state.heap.values()]:
        own = _own(state, holder) if isinstance(holder, Object) else None
        if own is not None and own[0] in LOW and module in modules.descendants(holder, state):
            return [Part(holder, *own, module)]
    return []


def _own(state: State, module: Value) -> tuple[str, int] | None:
    dtype, cast = state.heap.get((text(module), "%dtype")), state.heap.get((text(module), "%cast"))
    if isinstance(dtype, Literal) and isinstance(cast, Literal):
        return str(dtype.value), int(cast.value)
    return None


def _has_parameters(module: Value) -> bool:
    return not (isinstance(module, Object) and _WITHOUT_PARAMETERS.match(module.api))


def frozen(state: State, module: Value) -> bool:
    """`requires_grad_(False)`, or a loop that sets it for every parameter (or replaces their data by hand)."""
    key = text(module)
    return (
        state.heap.get((key, "%frozen")) == Literal(True)
        or state.heap.get((f"{key}.params[]", "requires_grad")) == FALSE
        or (f"{key}.params[]", "data") in state.heap
    )


def has_batchnorm(module: Value, state: State, depth: int = 0) -> bool:
    """Batch normalisation is in the module, with running statistics as it has them by default."""
    if not isinstance(module, Object) or depth > 6:
        return False
    if apis.BATCHNORM_MODELS.match(module.api) or (apis.BATCHNORM.match(module.api) and "Instance" not in module.api):
        return True
    return any(has_batchnorm(child, state, depth + 1) for child in modules.children_of(module, state))


def half_in(state: State) -> bool:
    """Some module is half precision on this path."""
    dtypes = (value for (_, name), value in state.heap.items() if name == "%dtype")
    return any(isinstance(value, Literal) and value.value in LOW for value in dtypes)


def keep(at: Moment[Any], parts: list[Part], message: str, place: int, *trail: tuple[int, str]) -> None:
    """Keep a finding about these casts until the file has been read; `settled` decides."""
    notes = at.interpreter.facts.setdefault("cast-notes", {})
    draft = at.finding(message, at=place, trail=trail)
    for part in parts:
        kept = notes.setdefault(part.cast_at, {}).setdefault(draft.code, [])
        kept.append((draft, text(part.module), text(part.owner)))


def settled(at: Moment[Any]) -> Iterator[Draft]:
    """The kept findings of this moment's code that no sharper one replaces."""
    casts: set[str] = at.interpreter.facts.get("cast-back", set())
    for codes in at.interpreter.facts.get("cast-notes", {}).values():
        if any(code in codes for code in SILENCED_BY.get(at.code, ())):
            continue
        for draft, *keys in codes.get(at.code, ()):
            if not casts.intersection(keys):
                yield draft
