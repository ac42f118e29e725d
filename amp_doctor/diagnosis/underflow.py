"""Gradients that float16 rounds to zero: AMP601, AMP602, AMP603."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.gradients import Gradient, below_half, lost, smallest_scale
from amp_doctor.diagnosis.precision import DEFAULT_SCALE
from amp_doctor.diagnosis.profile import ACTIVATION_GRAD, WEIGHT_GRAD
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import ROLE_WORDS, count, magnitude, percent, scale_words
from amp_doctor.finding import Confidence
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Layer

# A layer is reported when more than this share of its gradients that matter is lost.
LOST = 0.05
# A layer's gradients vanish when so much more of them than at the loss is lost at every admissible scale.
VANISHING = 0.10


@symptom("AMP601")
def lost_at_the_scale_in_use(facts: Facts) -> Iterable[Draft]:
    """Only where float16 is in use: a loss at scale 1 that a scaler would prevent is normal in a float32 run."""
    if not facts.use.float16:
        return
    scale, vanished = facts.use.scale, {one.layer.name for one, _ in vanishing(facts)}
    for one, share in _worst_role(facts, lambda one: lost(one.counts, scale)):
        # What vanishes at every scale no larger one would keep.
        if share > LOST and one.layer.name not in vanished:
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
    if facts.use.only_bfloat16 or facts.broken:
        return
    for one, share in vanishing(facts):
        yield Draft(
            one.layer.name,
            f"{percent(share)} of the {ROLE_WORDS[one.role]} vanish in FP16 even at "
            f"{scale_words(facts.largest_scale)}, the largest loss scale that the largest gradient of the model, "
            f"{magnitude(facts.amax)}, allows; here the largest is {magnitude(one.counts.amax)}",
            share,
        )


@symptom("AMP603")
def default_scale_too_small(facts: Facts) -> Iterable[Draft]:
    """A float32 run whose loss is so small that GradScaler would have to grow first, 2,000 steps for each doubling."""
    if facts.use.float16 or facts.use.bfloat16 or facts.broken or not 0 < facts.amax < FP16.min_normal:
        return
    wanted = [(one, smallest_scale(one.counts)) for one in facts.gradients]
    losing = [(one, scale) for one, scale in wanted if DEFAULT_SCALE < scale <= facts.largest_scale]
    if losing:
        worst = max((one for one, _ in losing), key=lambda one: below_half(one.counts, DEFAULT_SCALE))
        more = len({one.layer.name for one, _ in losing}) - 1
        others = f" (and so in {count(more, 'more layer')})" if more else ""
        yield Draft(
            worst.layer.name,
            f"the {ROLE_WORDS[worst.role]} are at most {magnitude(worst.counts.amax)}: GradScaler's default of "
            f"{scale_words(DEFAULT_SCALE)} leaves {percent(below_half(worst.counts, DEFAULT_SCALE))} of them below "
            f"FP16's smallest number{others}; start at init_scale="
            f"{scale_words(max(scale for _, scale in losing))} or make the loss larger",
        )
    elif facts.amax < FP16.min_subnormal:
        largest = max(facts.gradients, key=lambda one: one.counts.amax)
        yield Draft(
            largest.layer.name,
            f"the largest gradient of the model, {magnitude(facts.amax)}, is below FP16's smallest number: without a "
            f"loss scale nothing of it is left; GradScaler's default of {scale_words(DEFAULT_SCALE)} would keep it, a "
            "larger loss too",
        )


def vanishing(facts: Facts) -> list[tuple[Gradient, float]]:
    """The layers whose gradients vanish on their way back from the loss, and how much of them.

    What is tiny at the layer nearest to the loss comes from the loss itself: samples that fit, classes that nobody
    takes for likely. Weights count only where no output was seen: a bias before a norm has noise for a gradient. Units
    that are saturated pass nothing on, which is their right while all that comes before them gets its gradients.
    """
    if facts.largest_scale < 1:
        return []
    outputs = {one.layer.name for one in facts.gradients if one.role == ACTIVATION_GRAD}
    judged = [one for one in facts.gradients if one.role == ACTIVATION_GRAD or one.layer.name not in outputs]
    shares = [(one, _lost_of_all(facts, one)) for one in judged]
    most = max((share for one, share in shares if one.at_loss), default=0.0) + VANISHING
    weights = {one.layer.name: _lost_of_all(facts, one) for one in facts.gradients if one.role == WEIGHT_GRAD}
    found: list[tuple[Gradient, float]] = []
    sound: list[Layer] = []
    for one, share in sorted(shares, key=lambda pair: pair[0].layer.order):
        after_sound = not found and any(not _within(one.layer, other) for other in sound)
        losing = max(_worst_weight(one.layer, weights), lost(one.counts, facts.largest_scale))
        if one.at_loss or share <= most:
            sound.append(one.layer)
        elif not after_sound or losing > most:
            found.append((one, share))
    return found


def _lost_of_all(facts: Facts, one: Gradient) -> float:
    return one.counts.lost(FP16, facts.largest_scale)


def _within(layer: Layer, other: Layer) -> bool:
    """Whether `other` is a module that contains `layer`: it is called before it, and gets its gradients after it."""
    return other.name == other.type or layer.name.startswith(f"{other.name}.")


def _worst_weight(layer: Layer, shares: Mapping[str, float]) -> float:
    """The largest share of a gradient of weights that is lost, of a layer and of what it contains."""
    inside = f"{layer.name}."
    return max((share for name, share in shares.items() if name == layer.name or name.startswith(inside)), default=0.0)


def _worst_role(facts: Facts, share: Callable[[Gradient], float]) -> Iterator[tuple[Gradient, float]]:
    """Per layer the site of gradients with the largest share."""
    found: dict[str, tuple[Gradient, float]] = {}
    for one in facts.gradients:
        if one.at_loss:
            continue
        value = share(one)
        if one.layer.name not in found or value > found[one.layer.name][1]:
            found[one.layer.name] = (one, value)
    yield from found.values()


def _basis(facts: Facts, one: Gradient) -> str:
    if one.estimated:
        return ", estimated from what arrived"
    return ", as the calibrated steps predict" if facts.profile.precision.calibrated else ""
