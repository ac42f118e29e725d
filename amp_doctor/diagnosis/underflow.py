"""Gradients that float16 rounds to zero: AMP601, AMP602, AMP603."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.gradients import Gradient, lost, smallest_scale
from amp_doctor.diagnosis.precision import DEFAULT_SCALE
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import ROLE_WORDS, count, magnitude, percent, scale_words
from amp_doctor.finding import Confidence
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amp_doctor.diagnosis.facts import Facts

# A layer is reported when more than this share of its gradients that matter is lost.
LOST = 0.05
# A layer's gradients vanish when more than this share of the non-zero ones is lost at every admissible scale.
VANISHING = 0.10


@symptom("AMP601")
def lost_at_the_scale_in_use(facts: Facts) -> Iterable[Draft]:
    """Only where float16 is in use: a loss at scale 1 that a scaler would prevent is normal in a float32 run."""
    if not facts.use.float16:
        return
    scale, high = facts.use.scale, facts.largest_scale
    for one, share in _worst_role(facts, lambda one: lost(one.counts, scale)):
        if share > LOST and _vanished(one, high) <= VANISHING:
            where = f"the loss scale in use, {scale_words(scale)}" if facts.profile.precision.scaler else "scale 1"
            cure = smallest_scale(one.counts)
            yield Draft(
                one.layer.name,
                f"FP16 rounds {percent(share)} of the {ROLE_WORDS[one.role]} to zero at {where}"
                f"{'' if facts.profile.precision.scaler else ' (no GradScaler)'}{_basis(facts, one)}; "
                f"a scale of {scale_words(cure)} or more keeps them",
                share,
                Confidence.LOW if one.estimated else Confidence.HIGH,
            )


@symptom("AMP602")
def lost_at_every_scale(facts: Facts) -> Iterable[Draft]:
    """Gradients so far below the largest that no loss scale holds both: they vanish on the way back."""
    high = facts.largest_scale
    if facts.use.only_bfloat16 or high < 1:
        return
    for one, share in _worst_role(facts, lambda one: _vanished(one, high)):
        if share > VANISHING:
            yield Draft(
                one.layer.name,
                f"{percent(share)} of the {ROLE_WORDS[one.role]} vanish in FP16 even at {scale_words(high)}, the "
                f"largest loss scale that the largest gradient of the model, {magnitude(facts.amax)}, allows; here the "
                f"largest is {magnitude(one.counts.amax)}",
                share,
            )


@symptom("AMP603")
def default_scale_too_small(facts: Facts) -> Iterable[Draft]:
    """A float32 run whose loss is so small that GradScaler would have to grow first, 2,000 steps for each doubling."""
    if facts.use.float16 or facts.use.bfloat16:
        return
    high = facts.largest_scale
    losing = [
        (one, share)
        for one, share in _worst_role(facts, lambda one: lost(one.counts, DEFAULT_SCALE))
        if share > LOST >= lost(one.counts, high)
    ]
    if losing:
        one, share = max(losing, key=lambda pair: pair[1])
        needed = max(smallest_scale(each.counts) for each, _ in losing)
        others = f" (and in {count(len(losing) - 1, 'more layer')})" if len(losing) > 1 else ""
        yield Draft(
            one.layer.name,
            f"FP16 would round {percent(share)} of the {ROLE_WORDS[one.role]} to zero at GradScaler's default of "
            f"{scale_words(DEFAULT_SCALE)}{others}; they need init_scale={scale_words(needed)}, or a larger loss",
            share,
        )


def _vanished(one: Gradient, high: float) -> float:
    return one.counts.lost(FP16, high) if high >= 1 else 0.0


def _worst_role(facts: Facts, share: Callable[[Gradient], float]) -> Iterator[tuple[Gradient, float]]:
    """Per layer the site of gradients with the largest share."""
    found: dict[str, tuple[Gradient, float]] = {}
    for one in facts.gradients:
        value = share(one)
        if one.layer.name not in found or value > found[one.layer.name][1]:
            found[one.layer.name] = (one, value)
    yield from found.values()


def _basis(facts: Facts, one: Gradient) -> str:
    if one.estimated:
        return ", estimated from what arrived"
    return ", as the calibrated steps predict" if facts.profile.precision.calibrated else ""
