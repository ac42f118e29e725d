"""How a replayed step came out under a precision, and whether that speaks against it."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.operators import O1_BFLOAT16, O1_FLOAT16, TOLERANCE, outcome, spoiled, tried
from amp_doctor.diagnosis.precision import any_half
from amp_doctor.diagnosis.words import magnitude, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Outcome, Profile
    from amp_doctor.diagnosis.recommendation import KeepFP32

# Gradients of which half is wrong, and by so much more than in FP16, that its three bits are what is missing.
HALF_WRONG = 0.5
MUCH = 4.0


def float16_fails(profile: Profile, keep: Sequence[KeepFP32]) -> bool:
    """Whether the step goes wrong under O1 in FP16, and nothing is known that would mend it.

    What was found by trying mends it; so does FP32 for the layers that overflow, when they are all that does.
    """
    seen = outcome(profile, O1_FLOAT16)
    if seen is None or not _bad(seen, profile):
        return False
    if tried(profile):
        return False
    if not _finite(seen):
        kept = {one.layer for one in keep}
        overflow = [one for one in profile.operators if one.precision == O1_FLOAT16 and one.trouble == "overflow"]
        return not overflow or not all(one.layer in kept for one in overflow if one.phase == "forward")
    return not keep


def right_with_float32_weights(profile: Profile) -> bool:
    """Whether half weights break the step, and it comes right where they are FP32 and autocast casts them.

    One of the first two steps is replayed, the first where that breaks: of what breaks later it says nothing.
    """
    seen, first = outcome(profile, O1_FLOAT16), profile.first_nonfinite
    if seen is None or first is None or first.step > 2 or not any_half(profile.precision.weights):
        return False
    if _bad(seen, profile):
        return False
    return max(seen.loss_error, seen.gradient_error or 0.0) <= TOLERANCE


def _bad(seen: Outcome, profile: Profile) -> bool:
    if not _finite(seen) or spoiled(profile, O1_FLOAT16):
        return True
    # FP16 has more bits than BF16: where it is the worse of the two it is its range that is missing, not precision.
    other = outcome(profile, O1_BFLOAT16)
    gradients = seen.gradient_error or 0.0
    return gradients > TOLERANCE and other is not None and (other.gradient_error or 0.0) < gradients


def _finite(seen: Outcome) -> bool:
    """Under none of the loss scales that were tried the gradients were finite, when they are not."""
    return isfinite(seen.loss_error) and (seen.gradient_error is None or isfinite(seen.gradient_error))


def coarser(profile: Profile) -> bool:
    """Whether BF16 gets the gradients of the step wrong where FP16 does not."""
    wide, narrow = outcome(profile, O1_BFLOAT16), outcome(profile, O1_FLOAT16)
    if wide is None or narrow is None or wide.gradient_error is None or narrow.gradient_error is None:
        return False
    return wide.gradient_error > max(HALF_WRONG, MUCH * narrow.gradient_error)


def needs_float16(profile: Profile) -> bool:
    """Whether BF16 gets half of the gradients of the step wrong, and FP16 does not, with what was tried in FP32."""
    wide = outcome(profile, O1_BFLOAT16)
    return bool(tried(profile)) and wide is not None and (wide.gradient_error or 0.0) > HALF_WRONG


def changes(profile: Profile, precision: str) -> str:
    """`changes the loss of the replayed step by 12 % and its gradients by 40 %`; empty without a replay."""
    seen = outcome(profile, precision)
    if seen is None:
        return ""
    if not isfinite(seen.loss_error):
        return "makes the loss of the replayed step infinite or NaN"
    loss = f"changes the loss of the replayed step by {_amount(seen.loss_error, 'its size')}"
    if seen.gradient_error is None:
        return loss
    if not isfinite(seen.gradient_error):
        return f"{loss} and makes its gradients infinite or NaN"
    return f"{loss} and its gradients by {_amount(seen.gradient_error, 'their size')}"


def _amount(error: float, size: str) -> str:
    return percent(error) if error <= 1 else f"{magnitude(error)} times {size}"
