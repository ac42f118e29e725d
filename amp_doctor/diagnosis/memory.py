"""Bytes per opt level, from the real numbers of parameters, optimizer states and saved activations.

Bytes per parameter with Adam (reference, section 3.11, measured on torch 2.13): O0 and O1 16, O2 16 to 20, O3 8. So O1
saves nothing on model state; its gain are the activations. What of these is half at an opt level the replayed step says
exactly, where there is one: autocast's FP32 results, and the casts that it keeps, differ from model to model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.precision import any_half

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.diagnosis.profile import Profile


@dataclass(frozen=True, slots=True)
class Level:
    """Bytes per parameter (weights, gradients, master copy) and per element of state; activations as a part of O0's."""

    parameter: int
    state: int
    activations: float


# Saved tensors under autocast: 0.5 (convolutions) to 0.8 (a transformer) of float32's, weight casts included.
LEVELS = {
    "O0": Level(4 + 4, 4, 1.0),
    "O1": Level(4 + 4, 4, 0.65),
    "O2": Level(2 + 2 + 4, 4, 0.5),
    "O3": Level(2 + 2, 2, 0.5),
}


def memory(profile: Profile) -> dict[str, int]:
    """Opt level -> bytes for weights, gradients, optimizer state and activations saved for one backward pass.

    Empty when no parameter was seen. Activations count as 0 when nobody has measured or computed them.
    """
    size = profile.memory
    if not size.parameters:
        return {}
    saved = activations(profile)
    return {
        name: round(size.parameters * level.parameter + size.state_elements * level.state + saved.get(name, 0))
        for name, level in LEVELS.items()
    }


def activations(profile: Profile) -> dict[str, int]:
    """Opt level -> bytes of activations: as measured in the run, converted by what the replayed step gives at each.

    Without a measurement they are those of the replayed step itself, without either there are none.
    """
    known = _computed(profile)
    parts = {name: known[name] / known["O0"] if name in known else level.activations for name, level in LEVELS.items()}
    full = profile.memory.saved_bytes
    whole = known.get("O0", 0) if full is None else full / parts[_level_as_run(profile)]
    return {name: round(whole * part) for name, part in parts.items()} if whole else {}


def computed(profile: Profile) -> tuple[str, ...]:
    """The opt levels whose activations a replayed step has given; the rest are parts of O0's as usual for a model."""
    return tuple(name for name in LEVELS if name in _computed(profile))


def _computed(profile: Profile) -> Mapping[str, int]:
    known = profile.replay.activations if profile.replay is not None else {}
    return known if known.get("O0") else {}


def _level_as_run(profile: Profile) -> str:
    """The level at which the saved tensors were measured: that of the calibrated steps where there were any."""
    if profile.device.emulated:
        return "O0"  # a dry run computes in float32, and saves what it computes with
    if any_half(profile.precision.weights):
        return "O3"
    widened = profile.precision.calibrated and not profile.device.native_bf16
    return "O1" if any_half(profile.precision.autocast) and not widened else "O0"
