"""Bytes per opt level, from the real numbers of parameters, optimizer states and saved activations.

Bytes per parameter with Adam (reference, section 3.11, measured on torch 2.13): O0 and O1 16, O2 16 to 20, O3 8. So O1
saves nothing on model state; its gain are the activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.precision import HALF

if TYPE_CHECKING:
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

    Empty when no parameter was seen. Activations count as 0 when they were not measured.
    """
    size = profile.memory
    if not size.parameters:
        return {}
    saved = (size.saved_bytes or 0) / LEVELS[_level_as_run(profile)].activations
    return {
        name: round(size.parameters * level.parameter + size.state_elements * level.state + saved * level.activations)
        for name, level in LEVELS.items()
    }


def _level_as_run(profile: Profile) -> str:
    """The level at which the saved tensors were measured: that of the calibrated steps where there were any."""
    if profile.device.emulated:
        return "O0"  # a dry run computes in float32, and saves what it computes with
    if set(profile.precision.weights) & set(HALF):
        return "O3"
    widened = profile.precision.calibrated and not profile.device.native_bf16
    return "O1" if set(profile.precision.autocast) & set(HALF) and not widened else "O0"
