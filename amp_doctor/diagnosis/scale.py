"""The loss scales that float16 can use: an interval per layer, their intersection, and the layers that empty it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.gradients import largest_scale, smallest_scale
from amp_doctor.diagnosis.recommendation import KeepFP32, LossScale
from amp_doctor.diagnosis.words import magnitude, scale_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amp_doctor.diagnosis.gradients import Gradient

# apex's cap; torch's scaler has none and grows by itself.
CAP = 2.0**24
# Fifty early steps are a short look: one power of two stays free above the largest gradient seen.
HEADROOM = 2.0
FEW = 3
FEW_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The loss scale, and the layers that had to be left out for there to be one."""

    loss_scale: LossScale
    exempt: tuple[KeepFP32, ...] = ()
    capped: bool = False


@dataclass(frozen=True, slots=True)
class _Range:
    layer: str
    amax: float
    low: float

    @property
    def high(self) -> float:
        return largest_scale(self.amax)


def few(number: int, layers: int) -> bool:
    """True when so many layers may stay in FP32 without the rest losing its point."""
    return number <= max(FEW, int(FEW_SHARE * layers))


def loss_scale(gradients: Iterable[Gradient], layers: int) -> Verdict:
    """The admissible powers of two and the one to start with; `layers` is what few is measured against."""
    ranges = _ranges(gradients)
    if not ranges:
        return Verdict(LossScale(False, None, None))
    exempt = _exempt(ranges)
    kept = [one for one in ranges if one not in exempt]
    if not kept or not few(len(exempt), layers) or 2 * len(exempt) > len(ranges):
        return Verdict(LossScale(True, None, None))
    low, high = _interval(kept)
    wanted = min(high / HEADROOM, CAP)
    # Above 1 there is no headroom to give away where the interval is one power of two.
    start = min(max(wanted, low, 1.0), high)
    reasons = tuple(KeepFP32(one.layer, _reason(one, low, high)) for one in exempt)
    return Verdict(LossScale(low > 1, start, (low, high)), reasons, high / HEADROOM > CAP)


def _ranges(gradients: Iterable[Gradient]) -> list[_Range]:
    found: dict[str, _Range] = {}
    for one in gradients:
        name, counts = one.layer.name, one.counts
        low = 1.0 if one.at_loss else smallest_scale(counts)
        before = found.get(name, _Range(name, 0.0, 1.0))
        found[name] = _Range(name, max(before.amax, counts.amax), max(before.low, low))
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
