"""The loss scales that float16 can use: an interval per layer, their intersection, and the layers that empty it."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.gradients import largest_scale, smallest_scale
from amp_doctor.diagnosis.operators import O1_FLOAT16, outcome, tried
from amp_doctor.diagnosis.recommendation import KeepFP32, LossScale
from amp_doctor.diagnosis.words import magnitude, scale_words
from amp_doctor.numerics.formats import FP32

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amp_doctor.diagnosis.gradients import Gradient
    from amp_doctor.diagnosis.profile import Profile

# GradScaler keeps its scale in FP32 and multiplies gradients by the reciprocal, which above this is no normal number.
CEILING = 2.0**126
# Fifty early steps are a short look: one power of two stays free above the largest gradient seen.
HEADROOM = 2.0
FEW = 3
FEW_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The loss scale, and the layers that had to be left out for there to be one."""

    loss_scale: LossScale
    exempt: tuple[KeepFP32, ...] = ()


@dataclass(frozen=True, slots=True)
class _Range:
    layer: str
    amax: float
    low: float
    high: float


def few(number: int, layers: int) -> bool:
    """True when so many layers may stay in FP32 without the rest losing its point."""
    return number <= max(FEW, int(FEW_SHARE * layers))


def ceiling(profile: Profile) -> float:
    """The largest power of two by which a GradScaler can multiply the loss, and divide gradients again.

    apex ended at 2^24; torch's scaler has no end of its own. The gradient of a loss is the scale itself, so that one in
    FP16 takes no more than that can hold.
    """
    seen = outcome(profile, O1_FLOAT16)
    if seen is not None and seen.half_loss and not tried(profile):
        return largest_scale(seen.half_loss)
    largest = max((abs(one) for one in profile.loss if isfinite(one)), default=0.0)
    return min(CEILING, 2.0 ** (FP32.max_exponent - frexp(largest)[1]))


def loss_scale(gradients: Iterable[Gradient], layers: int, most: float = CEILING) -> Verdict:
    """The admissible powers of two up to `most` and the one to start with; few is measured against `layers`."""
    ranges = _ranges(gradients, most)
    if not ranges:
        return Verdict(LossScale(False, None, None))
    exempt = _exempt(ranges)
    kept = [one for one in ranges if one not in exempt]
    if not kept or not few(len(exempt), layers) or 2 * len(exempt) > len(ranges):
        return Verdict(LossScale(True, None, None))
    low, high = _interval(kept)
    # Above 1 there is no headroom to give away where the interval is one power of two.
    start = min(max(high / HEADROOM, low, 1.0), high)
    reasons = tuple(KeepFP32(one.layer, _reason(one, low, high)) for one in exempt)
    return Verdict(LossScale(low > 1, start, (low, high)), reasons)


def _ranges(gradients: Iterable[Gradient], most: float) -> list[_Range]:
    found: dict[str, _Range] = {}
    for one in gradients:
        name, counts = one.layer.name, one.counts
        low = 1.0 if one.at_loss else smallest_scale(counts)
        before = found.get(name, _Range(name, 0.0, 1.0, most))
        amax = max(before.amax, counts.amax)
        found[name] = _Range(name, amax, max(before.low, low), min(largest_scale(amax), most))
    return list(found.values())


def _interval(ranges: Sequence[_Range]) -> tuple[float, float]:
    return max(one.low for one in ranges), min(one.high for one in ranges)


def _exempt(ranges: list[_Range]) -> list[_Range]:
    """The fewest layers at one end that empty the interval: those that want the largest scale, or the smallest."""
    shorter: list[_Range] | None = None
    for ordered in (sorted(ranges, key=lambda one: -one.low), sorted(ranges, key=lambda one: one.high)):
        number = next((n for n in range(len(ordered)) if (ends := _interval(ordered[n:]))[0] <= ends[1]), len(ordered))
        if shorter is None or number < len(shorter):
            shorter = ordered[:number]
    return shorter or []


def _reason(one: _Range, low: float, high: float) -> str:
    if one.low > high:
        return (
            f"its gradients, at most {magnitude(one.amax)}, need a loss scale of {scale_words(one.low)}, "
            f"the other layers allow {scale_words(high)}"
        )
    return (
        f"its gradients reach {magnitude(one.amax)} and allow a loss scale of {scale_words(one.high)}, "
        f"the other layers need {scale_words(low)}"
    )
