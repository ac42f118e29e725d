"""What a script makes half itself, whatever precision is imposed on it from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.operators import O0_FLOAT16, outcome
from amp_doctor.diagnosis.precision import any_half
from amp_doctor.diagnosis.words import line_words

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile


def casts_itself(profile: Profile) -> bool:
    """Whether the recorded step has half tensors outside of any autocast."""
    return any_half(profile.precision.weights) or outcome(profile, O0_FLOAT16) is not None


def own_casts(profile: Profile) -> str:
    """A clause to add to what goes wrong in FP32, too; empty where the script has no casts of its own."""
    if not casts_itself(profile):
        return ""
    # The first operator that goes wrong as it is written is the nearest to the cast that is known.
    met = next((one for one in profile.operators if one.precision == O0_FLOAT16 and one.source is not None), None)
    where = f", and what goes wrong in it is {met.operator} at {line_words(met.source)}" if met and met.source else ""
    return f"; the script itself casts to half{where}: that stays so without autocast"


def in_float32_already(profile: Profile) -> str:
    """Why there is nothing to compare where FP32 is advised; empty where the script does use something else."""
    if any_half(profile.precision.autocast) or casts_itself(profile):
        return ""
    return "there is nothing to verify: FP32 is recommended, and in FP32 the script computes already"
