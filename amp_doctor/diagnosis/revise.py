"""The next best recommendation, when one was refuted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.snippet import snippet

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation

# What is wider comes later; float32 is what was compared with.
NEXT = {"float16": "bfloat16", "bfloat16": "float32"}


def next_best(recommendation: Recommendation, profile: Profile) -> Recommendation | None:
    """With the range of FP32, then with its precision, too; None after that. On a GPU without BF16 FP32 comes next."""
    dtype = NEXT.get(recommendation.dtype)
    device = profile.device
    if dtype == "bfloat16" and device.kind == "cuda" and not device.native_bf16:
        dtype = "float32"
    return as_dtype(recommendation, dtype, profile) if dtype is not None else None


def as_dtype(recommendation: Recommendation, dtype: str, profile: Profile) -> Recommendation:
    """The same facts, another dtype."""
    level = "O0" if dtype == "float32" else "O1"
    made = replace(recommendation, dtype=dtype, opt_level=level, confidence="medium", verified=None)
    return replace(made, snippet=snippet(made, profile))
