"""Which reduced precision a run used, and at which loss scale: what the words `in use` mean in every message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.profile import Profile

# torch.amp.GradScaler starts here (torch 2.13, amp/grad_scaler.py).
DEFAULT_SCALE = 65536.0
HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class InUse:
    """`scale` is that of the script's scaler where float16 is in use, 1 without one, else the default, hypothetical.

    `truncated`: the gradients went through float16 before they were counted, so what was lost arrived as zeros.
    `as_run`: tensors were counted in the precision the script runs in, so their dtypes say what is half.
    """

    float16: bool
    bfloat16: bool
    scale: float
    truncated: bool
    as_run: bool

    @property
    def only_bfloat16(self) -> bool:
        """bfloat16 is in use and float16 is not: what float16 would do is nobody's question."""
        return self.bfloat16 and not self.float16


def any_half(dtypes: Iterable[str]) -> bool:
    """Whether a half dtype is among them."""
    return any(dtype in HALF for dtype in dtypes)


def in_use(profile: Profile) -> InUse:
    """What the script asked for, by its autocast regions and the dtypes of its weights."""
    precision = profile.precision
    asked = {*precision.autocast, *precision.weights}
    float16 = "float16" in asked
    return InUse(
        float16=float16,
        bfloat16="bfloat16" in asked,
        scale=_scale(profile) if float16 else DEFAULT_SCALE,
        # Autocast can be widened for calibration, weights in half cannot.
        truncated="float16" in precision.weights or ("float16" in precision.autocast and not precision.calibrated),
        as_run=any_half(asked) and not precision.calibrated,
    )


def _scale(profile: Profile) -> float:
    """The last scale at which a step was taken; the last one tried when none was."""
    if not profile.precision.scaler:
        return 1.0
    taken = [event.scale for event in profile.scaler if not event.found_inf]
    tried = [event.scale for event in profile.scaler]
    return (taken or tried or [DEFAULT_SCALE])[-1]
