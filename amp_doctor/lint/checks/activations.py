"""AMP4, the activations: casts to float16 by hand whose gradients nobody scales."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.apis import FRAMEWORK_WORDS
from amp_doctor.lint.assume import decide
from amp_doctor.lint.checks.precision import half_in
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Backward, Cast, Scale
from amp_doctor.lint.machine import classes, evaluate, modules
from amp_doctor.lint.objects import HALF, TRUE, Class, Literal, Object, Symbol, Tensor, Test, Value, text

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN_SCALE = re.compile(r"(loss|backward)[^\n]*\*\s*(\d{2,}|2\s*\*\*|[\w.]*scale)")
_SWITCH = re.compile(r"amp|half|fp16|mixed|precision|_dtype", re.IGNORECASE)
_BORROWED = re.compile(r"\.dtype\b[^()]*\)$")
_NATIVE = re.compile(r"GradScaler|(?<![A-Za-z])scaler")


@dataclass(slots=True)
class Notes:
    """What a file does: its casts by node, which of them a backward passes, and what scales the losses."""

    casts: dict[int, tuple[Draft, frozenset[str]]] = field(default_factory=dict)
    passed: dict[int, set[str | None]] = field(default_factory=dict)
    losses: set[str | None] = field(default_factory=set)
    switches: dict[str, Value] = field(default_factory=dict)


@check("AMP410", on=(Cast, Scale, Backward, Finished))
def half_activations_without_scaler(at: Moment[Any]) -> Iterator[Draft]:
    event = at.event
    notes: Notes = at.interpreter.facts.setdefault("activations", Notes())
    if isinstance(event, Cast):
        if (
            event.dtype == HALF
            and _activation(at, event.target)
            and not _in_float16(at)
            and not half_in(at.state)
            and not _borrowed(at)
        ):
            message = "an activation is cast to float16 by hand, and no loss scale protects its gradient"
            draft, guards = notes.casts.get(event.at, (at.finding(message), frozenset()))
            notes.casts[event.at] = draft, guards | _guards(at)
    elif isinstance(event, Scale):
        notes.switches[event.scaler.oid] = event.scaler.fact("enabled") or TRUE
    elif isinstance(event, Backward):
        tags = event.tensor.tags if isinstance(event.tensor, Tensor) else frozenset()
        for tag in tags:
            if tag.startswith("cast@"):
                notes.passed.setdefault(int(tag[5:]), set()).add(event.scaler)
        if not tags & {"rescaled", "unseen", "gradient"}:
            notes.losses.add(event.scaler)
    else:
        yield from _unscaled(at, notes)


def _activation(at: Moment[Cast], target: Value) -> bool:
    """A value that a gradient flows through: from layers seen before, or the input of a module without any."""
    if at.interpreter.no_grad(at.state):
        return False
    if isinstance(target, Tensor) and target.sources:
        return target.dtype != HALF and "detached" not in target.tags
    function = at.interpreter.stack[-1].function
    if function.name != "forward" or function.owner is None or not isinstance(target, Symbol | Tensor):
        return False
    receiver = at.state.env.get((at.interpreter.here, function.params[0].name)) if function.params else None
    return isinstance(receiver, Object) and modules.is_module_value(receiver) and not _parametrised(at, receiver)


def _parametrised(at: Moment[Cast], module: Object) -> bool:
    """A module with weights of its own may be the first of a network, and its input no activation."""
    cls = module.cls
    if not isinstance(cls, Class) or modules.children_of(module, at.state):
        return True
    found = classes.find_method(at.interpreter, cls, "__init__", at.state)
    bases = classes.api_bases(at.interpreter, cls, at.state)
    return set(bases) != {"torch.nn.Module"} or (
        found is not None and bool(found[0].words & {"Parameter", "register_parameter", "add_module"})
    )


def _in_float16(at: Moment[Cast]) -> bool:
    """Autocast surely has float16 in force: the cast adds nothing, and AMP209 watches the scaler."""
    region = at.region()
    return region is not None and region.dtype == HALF and region.enabled == TRUE


def _borrowed(at: Moment[Cast]) -> bool:
    """The dtype is read from another tensor: `.to(v.dtype)`."""
    return bool(_BORROWED.search(at.text(at.event.at)))


def _guards(at: Moment[Cast]) -> frozenset[str]:
    """What the conditions around the cast ask, as far as they stand in this function."""
    here = [test for _, test, frame in at.interpreter.guards if frame == at.interpreter.here]
    return frozenset(key for test in here for key in _symbols(evaluate.evaluate(at.interpreter, test, at.state)))


def _symbols(value: Value) -> set[str]:
    if isinstance(value, Test):
        return {key for part in value.parts for key in _symbols(part)}
    return {value.key} if isinstance(value, Symbol) else set()


def _unscaled(at: Moment[Finished], notes: Notes) -> Iterator[Draft]:
    lines = set()
    for place, (draft, guards) in notes.casts.items():
        scalers = notes.passed.get(place) or notes.losses
        if any(_may_be_off(at, notes, scaler, guards) for scaler in scalers):
            line = at.home(place).places.statement(place)
            if line not in lines:
                yield draft
            lines.add(line)


def _may_be_off(at: Moment[Finished], notes: Notes, scaler: str | None, guards: frozenset[str]) -> bool:
    """A loss without a scale, or with one that is switched by something the cast does not ask."""
    if scaler is None:
        return not FRAMEWORK_WORDS.search(_NATIVE.sub("", at.module.code)) and not _OWN_SCALE.search(at.module.code)
    switch = notes.switches.get(scaler, TRUE)
    constant = isinstance(switch, Literal) or decide(switch, {}) is not None
    return not constant and not any(key in text(switch) or _SWITCH.search(key.rpartition(".")[2]) for key in guards)
