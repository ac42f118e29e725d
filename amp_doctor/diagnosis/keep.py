"""What has to stay in FP32 under float16 autocast: layers, and operators at their lines.

A layer is named for what was counted in every step; an operator for the one step that was replayed, where its exemption
was tried. Where both are known of a layer, the operator says what in it is to be exempted.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.activations import float32_under_autocast, hands_on, makes_half
from amp_doctor.diagnosis.facts import INPUT, OVERFLOWS, Facts
from amp_doctor.diagnosis.failing import refused_at, refusing
from amp_doctor.diagnosis.operators import O1_FLOAT16, REFUSED, ails, beside, tried
from amp_doctor.diagnosis.profile import ACTIVATION
from amp_doctor.diagnosis.recommendation import KeepFP32
from amp_doctor.diagnosis.words import magnitude
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.profile import Operator, Profile

_BESIDE = "what goes wrong there is computed from its result, which must not be rounded before"


def forward(known: Facts) -> tuple[KeepFP32, ...]:
    """The layers whose output float16 cannot hold, products that would read it, and operators found by trying."""
    found: list[KeepFP32] = []
    left = [one for one in tried(known.profile) if one.trouble not in REFUSED]
    for peak in known.peaks:
        if not peak.overflows:
            continue
        told = not peak.infinite and isfinite(peak.amax)
        amount = f"{peak.what} reaches {magnitude(peak.amax)}" if told else f"{peak.what} came out infinite"
        whole = KeepFP32(peak.layer, f"{amount}; FP16 ends at 65504")
        inside = [one for one in left if one.layer == peak.layer and one.trouble in OVERFLOWS]
        left = [one for one in left if one not in inside]
        # Of an operator that overflows the peak is told, over all steps; its output may be infinite for another reason.
        by_operator = [one for one in inside if peak.source is not None and one.source == peak.source]
        if inside and len(by_operator) == len(inside):
            found += [replace(_kept(one, known.profile), reason=whole.reason) for one in inside]
            continue
        if peak.operator and _is_root(peak.layer, known.profile):
            found.append(replace(whole, operator=peak.operator, source=peak.source, whole=False))
            continue
        found.append(replace(whole, operator=inside[0].operator, source=inside[0].source) if inside else whole)
        reader = _reader(known.profile, peak.layer)
        if reader is not None:
            found.append(KeepFP32(reader, f"it reads {peak.layer}, whose values FP16 cannot hold"))
    mended = {one.name for one in (*found, *(_kept(one, known.profile) for one in left)) if one.whole and one.operator}
    found = [one for one in found if one.operator or not _behind(one.layer, mended, known.profile)]
    joined = (KeepFP32(layer, _BESIDE, operator, whole=False) for layer, operator in beside(known.profile))
    return merged(found, (_kept(one, known.profile) for one in left), joined)


def refused(known: Facts) -> tuple[KeepFP32, ...]:
    """The operators that raise an error under autocast: they need a line of code whatever the dtype."""
    met = (one for one in known.profile.operators if one.precision == O1_FLOAT16 and one.trouble in REFUSED)
    told = merged(replace(_kept(one, known.profile), whole=False, refused=True) for one in met)
    # A run that this ended has no replay, and has told it in its last words.
    ended = refused_at(known.profile)
    if ended is None or any(one.source == ended[1] for one in told):
        return told
    reason = "CUDA's autocast refuses it" if ended[0] == "binary_cross_entropy" else "the script ended in its error"
    seen = refusing(known.profile)
    reason = ails(seen) if seen else reason
    return (*told, KeepFP32("", reason, *ended, whole=False, refused=True))


def merged(*parts: Iterable[KeepFP32]) -> tuple[KeepFP32, ...]:
    """Each layer and each operator once; an operator of a layer that stays as a whole is that layer's."""
    found: dict[str, KeepFP32] = {}
    for one in (one for part in parts for one in part):
        found.setdefault(one.name, one)
    layers = {one.layer for one in found.values() if one.whole}
    return tuple(one for one in found.values() if one.whole or one.layer not in layers)


def _kept(one: Operator, profile: Profile) -> KeepFP32:
    """The layer, where its call is the operator's; else the operator."""
    layer = next((layer for layer in profile.layers if layer.name == one.layer), None)
    whole = layer is not None and (one.source is None or layer.source == one.source)
    return KeepFP32(one.layer, ails(one), one.operator.removesuffix(INPUT), one.source, whole)


def _is_root(name: str, profile: Profile) -> bool:
    """A whole model in FP32 is no island: a root bears the name of its class, and a script's own code none."""
    return not name or any(layer.name == name == layer.type for layer in profile.layers)


def _behind(name: str, mended: set[str], profile: Profile) -> bool:
    """Whether a layer only hands on what one gives that was tried in FP32: then it is given FP32, and needs no more."""
    called = sorted((one for one in profile.layers if one.order >= 0), key=lambda one: one.order)
    at = next((place for place, one in enumerate(called) if one.name == name), -1)
    for one in reversed(called[: at + 1]):
        if one.name in mended:
            return one.name != name
        inside = any(other.name.startswith(f"{one.name}.") for other in called)
        if not inside and not hands_on(one):
            break
    return False


def _reader(profile: Profile, name: str) -> str | None:
    """The matrix product called next, unless what lies between is kept in float32 by autocast, or fits again."""
    start = next((layer.order for layer in profile.layers if layer.name == name), None)
    if start is None:
        return None
    after = sorted((one for one in profile.layers if one.order > start), key=lambda one: one.order)
    for layer in after:
        if float32_under_autocast(layer) or name.startswith(f"{layer.name}."):
            return None
        if makes_half(layer):
            return layer.name
        if ACTIVATION in layer.sites and layer.sites[ACTIVATION].histogram.amax < FP16.overflow_threshold:
            return None
    return None
