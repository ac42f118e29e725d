"""Layers -> the numbers behind the heat map, the table and the curves of the HTML report, as small as they can be."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.profile import ACTIVATION, GRADIENTS, ROLES, UPDATE
from amp_doctor.numerics.formats import FORMATS, FP16, FP32, TF32
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.report.amounts import magnitude
from amp_doctor.report.profile_rows import LABELS, harm
from amp_doctor.report.profile_verdict import where
from amp_doctor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from amp_doctor.diagnosis.profile import Layer, Profile, Site
    from amp_doctor.numerics.formats import Format

# The loss scales that can be tried on the page: 1 to 2^24, and further where a larger one is in use or advised.
LARGEST = 24
# Shares go in parts of a million; whatever is there at all is at least one.
PARTS = 1_000_000
# Formats whose limits can be drawn in.
LIMITS = tuple(one for name, one in FORMATS.items() if name not in (FP32.name, TF32.name))


def exponents(*scales: float | None) -> range:
    """The exponents of the loss scales that can be tried, one beyond the largest of these."""
    return range(max([LARGEST, *(ceil(log2(one)) + 1 for one in scales if one)]) + 1)


def layers_values(
    profile: Profile,
    scales: range,
    beside: Mapping[str, Sequence[int]],
    findings: Mapping[str, Sequence[int]],
) -> Any:
    """One list per layer: name, type, place, numbers of its findings, numbers of the lint findings beside it, sites.

    Sites stand in the order of ROLES, None where nothing was counted. `beside` and `findings` map names of layers.
    """
    return [
        [
            clean(layer.name) or "(the model)",
            clean(layer.type),
            where(layer.source),
            list(findings.get(layer.name, ())),
            list(beside.get(layer.name, ())),
            [_site(role, layer, scales) for role in ROLES],
        ]
        for layer in profile.layers
    ]


def limits_values() -> list[dict[str, Any]]:
    """Name and limits of each format, as powers of two and as words."""
    return [
        {
            "name": one.name,
            "zero": one.min_subnormal_exponent - 1,
            "normal": one.min_exponent,
            "over": round(log2(one.overflow_threshold), 4),
            "overflow": one.overflow_threshold,
            "saturates": one.saturates,
        }
        for one in LIMITS
    ]


def roles_values() -> list[dict[str, Any]]:
    """Name of each role, and whether a loss scale moves it."""
    return [{"name": LABELS[role], "gradient": role in GRADIENTS} for role in ROLES]


def total(profile: Profile, role: str) -> ExponentHistogram:
    """All layers' values of one role together."""
    return together(layer.sites[role].histogram for layer in profile.layers if role in layer.sites)


def together(histograms: Iterable[ExponentHistogram]) -> ExponentHistogram:
    """Their sum; adding 2,000 one by one with `+` would copy the counts as often."""
    exponents: dict[int, int] = {}
    zeros, amax, amin = 0, 0.0, float("inf")
    for one in histograms:
        for exponent, count in one.exponents.items():
            exponents[exponent] = exponents.get(exponent, 0) + count
        zeros, amax, amin = zeros + one.zeros, max(amax, one.amax), min(amin, one.amin)
    return ExponentHistogram(exponents, zeros, amax=amax, amin=amin)


def lost_curve(counts: ExponentHistogram, scales: range, to: Format = FP16) -> list[int]:
    """Parts of a million lost in `to` at loss scales of these exponents; zeros at the end are left out."""
    curve = [parts(counts.lost(to, 2.0**k)) for k in scales]
    while curve and not curve[-1]:
        curve.pop()
    return curve


def overflow_curve(counts: ExponentHistogram, scales: range, to: Format = FP16) -> list[int]:
    """Parts of a million that overflow in `to` at loss scales of these exponents."""
    return [parts(counts.overflowing(to, 2.0**k)) for k in scales]


def parts(share: float) -> int:
    """A share in parts of a million; only none is 0, only all is a million."""
    if share <= 0 or share >= 1:
        return PARTS if share >= 1 else 0
    return min(max(round(share * PARTS), 1), PARTS - 1)


def worst_role(profile: Profile) -> int:
    """The number of the role to show first: forward values that overflow, else the gradients that lose most."""
    if any(ACTIVATION in layer.sites and harm(layer.sites[ACTIVATION]) >= 1 for layer in profile.layers):
        return ROLES.index(ACTIVATION)
    losses = {
        role: max((harm(layer.sites[role]) for layer in profile.layers if role in layer.sites), default=-1.0)
        for role in (*GRADIENTS, ACTIVATION)
    }
    return ROLES.index(max(losses, key=lambda role: losses[role]))


def _site(role: str, layer: Layer, scales: range) -> list[Any] | None:
    """As core.js names the places: dtype, elements, zeros, NaN, infinities, amax, amin, lowest exponent, bins, ..."""
    site = layer.sites.get(role)
    if site is None:
        return None
    counts = site.histogram
    low = min(counts.exponents, default=0)
    nonzero = counts.nonzero
    bins = [parts(counts.exponents.get(e, 0) / nonzero) for e in range(low, max(counts.exponents, default=-1) + 1)]
    return [
        site.dtype,
        counts.elements,
        counts.zeros,
        counts.nan,
        counts.inf,
        magnitude(counts.amax),
        magnitude(counts.amin) if nonzero else "",
        low,
        bins,
        int(site.sampled),
        _extra(role, site, layer, scales),
        # In words it is rounded, which decides nothing about overflow.
        float(f"{counts.amax:.9g}"),
    ]


def _extra(role: str, site: Site, layer: Layer, scales: range) -> Any:
    """Of a gradient: losses by scale, first scale that overflows, zeros observed; of an update: what it swallows."""
    if role == UPDATE:
        nonzero = site.histogram.nonzero or 1
        return {name: parts(count / nonzero) for name, count in site.swallowed.items()}
    if role not in GRADIENTS:
        return 0
    over = next((k for k in scales if site.histogram.overflowing(FP16, 2.0**k)), -1)
    seen = layer.observed.get(role)
    return [lost_curve(site.histogram, scales), over, *_observed(seen)]


def _observed(seen: Site | None) -> list[Any]:
    if seen is None or not seen.histogram.elements:
        return []
    return [seen.dtype, parts(seen.histogram.zeros / seen.histogram.elements)]
