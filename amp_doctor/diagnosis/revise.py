"""The next best recommendation, when one was refuted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.operators import tried
from amp_doctor.diagnosis.snippet import snippet

if TYPE_CHECKING:
    from collections.abc import Collection

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation

# What is wider comes later; float32 is what was compared with.
NEXT = {"float16": "bfloat16", "bfloat16": "float32"}


def next_best(recommendation: Recommendation, profile: Profile, refuted: Collection[str] = ()) -> Recommendation | None:
    """With the range of FP32, then with its precision, too; None after that. On a GPU without BF16 FP32 comes next.

    BF16 may lack the three bits that FP16 has more: where it is known what brings a step in FP16 back, and that is not
    among the dtypes that were `refuted` before, it comes first.
    """
    dtype = NEXT.get(recommendation.dtype)
    if recommendation.dtype == "bfloat16" and "float16" not in refuted and _mended(recommendation, profile):
        dtype = "float16"
    while dtype is not None and dtype in refuted:
        dtype = NEXT.get(dtype)
    device = profile.device
    if dtype == "bfloat16" and device.kind == "cuda" and not device.native_bf16:
        dtype = "float32"
    return as_dtype(recommendation, dtype, profile) if dtype is not None else None


def _mended(recommendation: Recommendation, profile: Profile) -> bool:
    kept = any(not one.refused for one in recommendation.keep_fp32)
    return kept and bool(tried(profile)) and recommendation.loss_scale.admissible is not None


def as_dtype(recommendation: Recommendation, dtype: str, profile: Profile) -> Recommendation:
    """The same facts, another dtype."""
    level = "O0" if dtype == "float32" else "O1"
    made = replace(recommendation, dtype=dtype, opt_level=level, confidence="medium", verified=None)
    return replace(made, snippet=snippet(made, profile))
