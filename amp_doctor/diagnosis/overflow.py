"""Values beyond float16's largest: AMP604, AMP605, AMP606."""

from __future__ import annotations

from math import ceil, isfinite, log2
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.precision import DEFAULT_SCALE
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import ROLE_WORDS, count, magnitude, scale_words
from amp_doctor.finding import Confidence
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.facts import Facts

# A scaler that must skip so many first steps was started too high; gradients of 2,048 are that far from the default.
SKIPS = 12
HEADROOM = 4.0


@symptom("AMP604")
def gradients_too_large(facts: Facts) -> Iterable[Draft]:
    """A scaler must skip a dozen steps before it reaches a scale that fits; only the worst layer is named."""
    if facts.use.only_bfloat16 or facts.broken or not facts.gradients:
        return
    top = max(facts.gradients, key=lambda one: one.counts.amax)
    largest = f"the {ROLE_WORDS[top.role]} reach {magnitude(top.counts.amax)}"
    scaled = not facts.use.float16 or facts.profile.precision.scaler
    start = facts.profile.scaler[0].scale if facts.use.float16 and facts.profile.scaler else DEFAULT_SCALE
    if not scaled:
        if top.counts.amax >= FP16.overflow_threshold:
            yield Draft(top.layer.name, f"{largest}, beyond FP16's largest number 65504: they become infinite")
        return
    skips = ceil(log2(top.counts.amax * start / FP16.overflow_threshold)) if top.counts.amax else 0
    loss = max((abs(value) for value in facts.profile.loss if isfinite(value)), default=0.0)
    if skips >= SKIPS:
        # A large loss alone is healthy, when it is a sum: autocast computes it in FP32.
        huge = loss >= FP16.overflow_threshold
        words = f"; the loss itself, up to {magnitude(loss)}, does not fit FP16" if huge else ""
        cure = (
            f"start at init_scale={scale_words(facts.largest_scale)} or make the loss smaller"
            if facts.largest_scale >= 1
            else "no scale from 1 on fits: make the loss smaller"
        )
        yield Draft(
            top.layer.name,
            f"{largest}: a GradScaler that starts at {scale_words(start)} skips the first {skips} steps{words}; {cure}",
        )


@symptom("AMP605")
def activations_overflow(facts: Facts) -> Iterable[Draft]:
    """Forward overflow, predicted from magnitudes or seen as infinities."""
    if facts.use.only_bfloat16 or facts.broken:
        return
    becomes = "becomes" if facts.use.float16 else "would become"
    for peak in facts.peaks:
        if not peak.overflows:
            continue
        if peak.infinite:
            seen = f"{count(peak.infinite, 'element')} of {peak.what} came out infinite in FP16"
            finite = (
                f" (in the calibrated steps it reached {magnitude(peak.amax)})" if _predicted(facts, peak.amax) else ""
            )
            message = f"{seen}{finite}"
        elif not isfinite(peak.amax):
            message = f"{peak.what} came out infinite in FP16"
        else:
            message = f"{peak.what} reaches {magnitude(peak.amax)} and {becomes} infinite in FP16, which ends at 65504"
        yield Draft(
            peak.layer or None,
            f"{message}; no loss scale helps: keep it in FP32 or use BF16",
            peak.amax if not peak.infinite else float("inf"),
            Confidence.HIGH if facts.use.float16 else Confidence.MEDIUM,
            peak.source,
        )


@symptom("AMP606")
def little_headroom(facts: Facts) -> Iterable[Draft]:
    """An output that still fits, but not four times over."""
    if facts.use.only_bfloat16 or facts.broken:
        return
    for peak in facts.peaks:
        if not peak.overflows and peak.amax * HEADROOM >= FP16.overflow_threshold:
            factor = FP16.max / peak.amax
            yield Draft(
                peak.layer,
                f"{peak.what} reaches {magnitude(peak.amax)}, a factor of {factor:.1f} below the end of FP16 (65504)",
                peak.amax,
                Confidence.MEDIUM,
            )


def _predicted(facts: Facts, amax: float) -> bool:
    return facts.profile.precision.calibrated and amax >= FP16.overflow_threshold
