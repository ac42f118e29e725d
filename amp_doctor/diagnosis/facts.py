"""What the symptoms and the recommendation both start from, derived once from a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.activations import float32_under_autocast, half_outputs, infinities, makes_half, reach
from amp_doctor.diagnosis.gradients import Gradient, gradients, largest_scale
from amp_doctor.diagnosis.precision import InUse, in_use
from amp_doctor.diagnosis.profile import ACTIVATION, WEIGHT, Profile, Source
from amp_doctor.diagnosis.trust import trusted
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Peak:
    """How far a half tensor goes: `amax` of `what`, and how many elements were seen `infinite` in the run itself.

    `operator` is the one that gives it, where it is not the layer.
    """

    layer: str
    what: str
    amax: float
    infinite: int = 0
    source: Source | None = None
    operator: str = ""

    @property
    def overflows(self) -> bool:
        """Beyond the range of float16, which no loss scale changes."""
        return self.amax >= FP16.overflow_threshold or self.infinite > 0


@dataclass(frozen=True, slots=True)
class Facts:
    """A profile, the precision in use, its gradients, and the peaks of what autocast makes half.

    Of a replay that did not come out as the run did the profile holds nothing that anything could rest on.
    """

    profile: Profile
    use: InUse
    gradients: tuple[Gradient, ...]
    peaks: tuple[Peak, ...]

    @property
    def amax(self) -> float:
        """The largest gradient of all; 0 when there is none."""
        return max((one.counts.amax for one in self.gradients), default=0.0)

    @property
    def broken(self) -> bool:
        """NaN or infinity without any reduced precision: then what float16 would do is not the question."""
        return self.profile.first_nonfinite is not None and not (self.use.float16 or self.use.bfloat16)

    @property
    def largest_scale(self) -> float:
        """The largest power of two that no gradient overflows at, perhaps below 1."""
        return largest_scale(self.amax)


# Ends the name of an operator whose inputs become infinite when they are cast, and not its result.
INPUT = " (input)"
# Infinities where FP32 has none; the second come from adding up, if they are beyond the range.
OVERFLOWS = ("overflow", "accumulation")
# Seen in the run, as the script is written, or under autocast.
_ASKED = ("", "O0/float16", "O1/float16")


def facts(profile: Profile) -> Facts:
    """Everything that is derived from a profile before anything is judged."""
    profile, use = trusted(profile), in_use(profile)
    return Facts(profile, use, gradients(profile, use), tuple(_peaks(profile, use)))


def _peaks(profile: Profile, use: InUse) -> Iterable[Peak]:
    """One per layer or operator, the largest first; an operator beats its layer, for it has a line."""
    # What a replay finds outside all children of a model belongs to the model, which bears the name of its class.
    roots = [layer.name for layer in profile.layers if layer.name == layer.type]
    found: dict[str, Peak] = {}
    for peak in (*_operators(profile), *_outputs(profile, use), *_weights(profile)):
        layer = peak.layer or (roots[0] if len(roots) == 1 else "")
        if layer not in found or (peak.overflows and not found[layer].overflows):
            found[layer] = peak
    return sorted(found.values(), key=lambda peak: (not peak.infinite, -peak.amax))


def _operators(profile: Profile) -> Iterable[Peak]:
    for one in sorted(profile.operators, key=lambda one: -one.amax):
        # Beyond O1 the script would have to ask for it; a gradient may be scaled down.
        expected = one.precision not in _ASKED or one.phase != "forward"
        if one.trouble in OVERFLOWS and not expected and one.amax >= FP16.overflow_threshold:
            name = one.operator.removesuffix(INPUT)
            what = "an input" if one.operator.endswith(INPUT) else "the result"
            yield Peak(one.layer, f"{what} of {name} in this layer", one.amax, 0, one.source, name)


def _outputs(profile: Profile, use: InUse) -> Iterable[Peak]:
    first = True
    for layer in half_outputs(profile, use):
        counts = layer.sites[ACTIVATION].histogram
        seen = layer.observed.get(ACTIVATION) or (layer.sites[ACTIVATION] if use.as_run else None)
        infinite = infinities(seen.histogram) if seen is not None and not _follow_weights(profile) else 0
        if infinite and not first:
            continue  # what follows an infinity is infinite too
        first = first and not infinite
        yield Peak(layer.name, "the output of this layer", reach(layer, counts), infinite)


def _follow_weights(profile: Profile) -> bool:
    """Whether infinite outputs are what broken weights give, not what a format makes of finite numbers."""
    first = profile.first_nonfinite
    return first is not None and first.phase in ("weight", "backward", "optimizer")


def _weights(profile: Profile) -> Iterable[Peak]:
    for layer in profile.layers:
        if WEIGHT in layer.sites and makes_half(layer) and not float32_under_autocast(layer):
            yield Peak(layer.name, "a weight of this layer", layer.sites[WEIGHT].histogram.amax)
