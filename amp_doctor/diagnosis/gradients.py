"""The gradients of a run, site by site: which of them matter, and which loss scales keep them.

The 2018 paper (Micikevicius et al., 1710.03740, section 3.2) found for an SSD detector that gradients in [2^-27, 2^-24)
mattered and those below 2^-27 did not; it used a scale of 8. A model whose gradients are all tiny has its own floor, 13
powers of two below its largest: that keeps the same ratio to the top as 2^-27 has to 2^-14, where FP16 is still normal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp, log2
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import ACTIVATION_GRAD, GRADIENTS, Layer, Profile
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from amp_doctor.diagnosis.precision import InUse
    from amp_doctor.numerics.histogram import ExponentHistogram

FLOOR_EXPONENT = -27
FLOOR_BELOW_TOP = 13
# Of the gradients that matter this share may be lost at an admissible scale.
TOLERATED = 0.01

# At GradScaler's default of 2^16 it is a normal number of float16.
_SOUND = FP16.min_normal * 2.0**-16

_LOSS_NAMES = frozenset("criterion loss loss_fn loss_func loss_function".split())


@dataclass(frozen=True, slots=True)
class Gradient:
    """One site of gradients in true units. `estimated`: part of what float16 lost was put back by extrapolation.

    `at_loss`: the loss itself gives it, as softmax gives logits p - y. What p says of the wrong classes may be as small
    as it pleases, in a vocabulary of thousands most of all; while the largest is sound, nobody needs the rest.
    """

    layer: Layer
    role: str
    counts: ExponentHistogram
    estimated: bool = False
    at_loss: bool = False


def is_loss(layer: Layer) -> bool:
    """A criterion: it runs in FP32 under autocast, and its own gradient is 1 whatever the model."""
    return layer.type.endswith("Loss") or layer.name.rpartition(".")[2] in _LOSS_NAMES


def gradients(profile: Profile, use: InUse) -> tuple[Gradient, ...]:
    """Every site of gradients that holds a finite non-zero element, losses left out, in the order of the layers."""
    found = []
    outputs = _outputs(profile)
    for layer in profile.layers:
        if is_loss(layer):
            continue
        for role in GRADIENTS:
            site = layer.sites.get(role)
            if site is not None and site.histogram.nonzero:
                counts = restored(site.histogram, use.scale) if use.truncated else site.histogram
                at_loss = role == ACTIVATION_GRAD and layer.name in outputs and counts.amax >= _SOUND
                found.append(Gradient(layer, role, counts, counts is not site.histogram, at_loss))
    return tuple(found)


def _outputs(profile: Profile) -> frozenset[str]:
    """The layers that a loss is computed from: the roots, which bear the name of their class, and the last called."""
    called = [layer for layer in profile.layers if layer.order >= 0 and ACTIVATION_GRAD in layer.sites]
    inner = [layer for layer in called if layer.name != layer.type and not is_loss(layer)]
    last = max(inner, key=lambda layer: layer.order).name if len(inner) > 1 else ""
    return frozenset({last, *(layer.name for layer in called if layer.name == layer.type)})


def restored(counts: ExponentHistogram, scale: float) -> ExponentHistogram:
    """What float16 let through at `scale`, with the elements put back that it must have rounded to zero.

    Near zero a smooth density is flat: what became the smallest subnormal came from an interval of one unit, what
    became zero from half a unit. So half the count of the smallest subnormal was lost, or as many as there are zeros.
    """
    shift = round(log2(scale))
    smallest = FP16.min_subnormal_exponent - shift
    lost = min(counts.exponents.get(smallest, 0) // 2, counts.zeros)
    if not lost:
        return counts
    edge = smallest - 2
    exponents = {**counts.exponents, edge: counts.exponents.get(edge, 0) + lost}
    return replace(counts, exponents=exponents, zeros=counts.zeros - lost, amin=min(counts.amin, 2.0**edge))


def relevant(counts: ExponentHistogram) -> ExponentHistogram:
    """The part that matters: from min(2^-27, amax 2^-13) upward, in whole exponents."""
    floor = min(FLOOR_EXPONENT, frexp(counts.amax)[1] - 1 - FLOOR_BELOW_TOP)
    kept = {exponent: number for exponent, number in counts.exponents.items() if exponent >= floor}
    return replace(counts, exponents=kept, amin=max(counts.amin, 2.0**floor))


def lost(counts: ExponentHistogram, scale: float) -> float:
    """The share of the gradients that matter that a cast to float16 rounds to zero at `scale`."""
    return relevant(counts).lost(FP16, scale)


def below_half(counts: ExponentHistogram, scale: float) -> float:
    """The share of the gradients that matter below 2^-24 at a power of two; to 2^-25 they are doubled, then zero."""
    kept = relevant(counts)
    limit = FP16.min_subnormal_exponent - round(log2(scale))
    below = sum(number for exponent, number in kept.exponents.items() if exponent < limit)
    return below / kept.nonzero if kept.nonzero else 0.0


def smallest_scale(counts: ExponentHistogram) -> float:
    """The smallest power of two from 1 on that leaves at most TOLERATED of what matters below 2^-24.

    2^-24 and not 2^-25, where rounding to zero begins: between the two an element survives only by being doubled.
    """
    kept = relevant(counts).exponents
    total = sum(kept.values())
    below = 0
    for exponent in sorted(kept):
        below += kept[exponent]
        if below > TOLERATED * total:
            return 2.0 ** max(0, FP16.min_subnormal_exponent - exponent)
    return 1.0


def largest_scale(amax: float) -> float:
    """The largest power of two, perhaps below 1, at which `amax` stays finite in float16."""
    if amax <= 0:
        return 1.0
    scale = 2.0 ** (frexp(FP16.overflow_threshold)[1] - frexp(amax)[1])
    return scale if amax * scale < FP16.overflow_threshold else scale / 2
