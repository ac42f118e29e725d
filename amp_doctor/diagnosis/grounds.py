"""What a recommendation rests on, how sure it is, and what would overturn it: sentences with numbers."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.arithmetic import swallowed_share
from amp_doctor.diagnosis.failing import failing
from amp_doctor.diagnosis.gradients import FLOOR_EXPONENT, lost
from amp_doctor.diagnosis.memory import computed
from amp_doctor.diagnosis.operators import O1_FLOAT16, outcome
from amp_doctor.diagnosis.profile import UPDATE, WEIGHT, Site
from amp_doctor.diagnosis.scale import FEW, ceiling
from amp_doctor.diagnosis.words import count, listed, magnitude, percent, scale_words
from amp_doctor.numerics.formats import FP16
from amp_doctor.numerics.histogram import ExponentHistogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.recommendation import KeepFP32
    from amp_doctor.diagnosis.scale import Verdict

MANY_STEPS = 50
FEW_STEPS = 10
# An interval this wide leaves room for what later steps bring.
WIDE = 2.0**8
# Of the updates, so many may be swallowed before weights in half are advised against.
SWALLOWED = 0.05


def reasons(known: Facts, verdict: Verdict, keep: Sequence[KeepFP32]) -> tuple[str, ...]:
    """The numbers behind a verdict, the most important first."""
    return (
        *_scale_reasons(known, verdict),
        *(f"{one.name or 'the loss'}: {one.reason}" for one in keep[:FEW]),
        *_weight_reasons(known),
        *_memory_reasons(known),
    )


def confidence(known: Facts, verdict: Verdict) -> str:
    """low for a short or truncated look, high for a long one with room to spare, else medium."""
    steps = known.profile.steps
    if not known.gradients or known.use.truncated or known.broken or steps.taken < FEW_STEPS:
        return "low"
    ends = verdict.loss_scale.admissible
    roomy = ends is not None and ends[1] / ends[0] >= WIDE and not verdict.exempt
    return "high" if steps.taken >= MANY_STEPS and roomy else "medium"


def would_change(known: Facts, verdict: Verdict, dtype: str, *, fits: bool) -> tuple[str, ...]:
    """What later steps, another mode or another machine could bring; not what the run has brought already."""
    profile = known.profile
    said = [
        f"the look was short ({count(profile.steps.attempted, 'early step')}): gradients shrink later, outputs may grow"
    ]
    if profile.mode == "auto" and profile.precision.calibrated:
        said.append("only the first fifth of the steps was calibrated: --mode calibrate looks at all of them")
    if known.use.truncated:
        said.append("the gradients were seen in FP16, where what was lost arrives as zeros: --mode calibrate sees them")
    # Weights and their updates are looked at on some steps only, whatever was asked for.
    sites = (item for layer in profile.layers for item in layer.sites.items())
    if any(site.sampled for role, site in sites if role not in (WEIGHT, UPDATE)):
        said.append("some tensors were sampled: a rare large value may have been missed")
    if dtype == "float16":
        where = "another layer" if any(peak.overflows for peak in known.peaks) else "some layer"
        skips = "" if failing(known) else ", or infinities that keep the scaler skipping,"
        said.append(f"an output beyond 65504 in {where}{skips} would call for BF16")
    elif dtype == "bfloat16" and verdict.loss_scale.admissible is not None:
        other = "FP16 with the loss scale above" if fits else "FP32, as FP16 does not fit"
        said.append(f"a GPU without native BF16 (compute capability below 8.0) would call for {other}")
    if profile.ended == "exception":
        said.append("the exception that ended the script: what would have come after it was not seen")
    return tuple(said)


def _scale_reasons(known: Facts, verdict: Verdict) -> list[str]:
    if not known.gradients:
        return []
    scale = verdict.loss_scale
    pooled = reduce(add, (one.counts for one in known.gradients), ExponentHistogram())
    saved, ignored = _bands(pooled)
    worst = max(known.gradients, key=lambda one: lost(one.counts, 1.0))
    said = [
        f"of the non-zero gradients {percent(saved)} lie in [2^-27, 2^-24), {percent(ignored)} below",
        f"at scale 1 FP16 loses {percent(lost(worst.counts, 1.0))} of what matters in layer {worst.layer.name}",
    ]
    if scale.admissible is not None and scale.init_scale is not None:
        low, high = map(scale_words, scale.admissible)
        said.append(
            f"the largest gradient is {magnitude(known.amax)}: loss scales from {low} to {high} are admissible, "
            f"{scale_words(scale.init_scale)} to start with"
            if not verdict.exempt
            else f"without the layers kept in FP32, loss scales from {low} to {high} are admissible"
        )
        if scale.admissible[1] == ceiling(known.profile) < known.largest_scale:
            said.append(_end_of_scaling(known))
    return said


def _end_of_scaling(known: Facts) -> str:
    """Why gradients that could be multiplied by more are not."""
    seen = outcome(known.profile, O1_FLOAT16)
    if seen is not None and seen.half_loss:
        return "the loss is FP16 itself, which a larger scale takes to infinity: computed in FP32 it would allow more"
    return "a larger scale would leave the range of FP32 when the loss is multiplied or the gradients are divided"


def _bands(counts: ExponentHistogram) -> tuple[float, float]:
    total = counts.nonzero
    below = sum(number for exponent, number in counts.exponents.items() if exponent < FLOOR_EXPONENT)
    band = sum(
        number
        for exponent, number in counts.exponents.items()
        if FLOOR_EXPONENT <= exponent < FP16.min_subnormal_exponent
    )
    return (band / total, below / total) if total else (0.0, 0.0)


def _weight_reasons(known: Facts) -> list[str]:
    """Why weights are not cast: what O2 and O3 do to updates."""
    total = Site()
    for layer in known.profile.layers:
        if UPDATE in layer.sites and WEIGHT in layer.sites and layer.sites[WEIGHT].dtype == "float32":
            total = total + layer.sites[UPDATE]
    shares = {name: swallowed_share(total, name, weights="float32") for name in ("bfloat16", "float16")}
    if not any(share > SWALLOWED for share in shares.values()):
        return []
    in_bf16, in_fp16 = percent(shares["bfloat16"]), percent(shares["float16"])
    return [f"weights cast to half (O3) would swallow {in_bf16} of the updates in BF16, {in_fp16} in FP16: keep FP32"]


def _memory_reasons(known: Facts) -> list[str]:
    size = known.profile.memory
    if not size.parameters:
        return []
    said = ["O1 saves memory on activations only: weights, gradients and optimizer state stay in FP32"]
    if levels := computed(known.profile):
        said.append(
            f"what of the activations is half was computed from the replayed step for {listed(list(levels), 4)}"
        )
    elif size.saved_bytes is None:
        said.append("activations were not measured, so the memory per opt level is that of weights and optimizer alone")
    return said
