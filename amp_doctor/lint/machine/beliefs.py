"""What an event tells about entry points that are read later: the region of their forward, and what they were given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.events import Construct, Event, Forward
from amp_doctor.lint.machine.tensors import active_region
from amp_doctor.lint.objects import BF16, HALF, Literal, Object, Symbol, flat

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State

MAX_TRAINERS = 4


def learn(m: Interpreter, event: Event, state: State) -> None:
    """Keep what the event tells; `state` is as it was before it."""
    match event:
        case Forward(module=Symbol()) if "presumed" not in m.facts:
            # Models of unknown make run here under autocast: the file's own modules are believed to be among them.
            region = active_region(state)
            if region is not None and region.dtype == HALF:
                m.facts["presumed"] = replace(region, presumed=True)
        case Construct(object=Object("instance") as instance) if len(m.trainers) < MAX_TRAINERS:
            if _trains(event, instance, state) and all(known.oid != instance.oid for known, _ in m.trainers):
                m.trainers.append((instance, state.copy()))


def _trains(event: Construct, instance: Object, state: State) -> bool:
    """A trainer that was given a half-precision model, or one of the file's own: its methods are read with it."""
    handed = (item for _, value in event.args for item in flat(value))
    own = any(isinstance(item, Object) and item.cls is not None and item.role == "instance" for item in handed)
    low = any(
        name == "%dtype" and isinstance(value, Literal) and value.value in (HALF, BF16)
        for (_, name), value in state.heap.items()
    )
    owns = any(
        owner == instance.oid and isinstance(value, Object) and value.role == "optimizer"
        for (owner, _), value in state.heap.items()
    )
    return (low or own) and owns
