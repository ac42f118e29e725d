"""The layers that matter, worst first: what float16 keeps of them, as bars between its limits."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import ACTIVATION, GRADIENTS, ROLES, UPDATE, WEIGHT
from amp_doctor.numerics.formats import FP16
from amp_doctor.report.amounts import magnitude, scale, share
from amp_doctor.report.bars import Ruler
from amp_doctor.report.layout import beside, fitted, paragraph, section
from amp_doctor.report.profile_verdict import where
from amp_doctor.report.text import Line, cells, clean, counted

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Layer, Site
    from amp_doctor.report.sheet import Sheet

# As many layers as fit on a screen; where nothing is wrong three show what healthy looks like.
SHOWN, HEALTHY = 6, 3
# What is pointed out: one per cent of a gradient lost; less than a factor 8 below overflow; updates lost to rounding.
LOST = 0.01
CLOSE = FP16.overflow_threshold / 8
SWALLOWED = 0.1
LABELS = {
    ACTIVATION: "activation",
    "activation_grad": "act. grad",
    WEIGHT: "weight",
    "weight_grad": "weight grad",
    UPDATE: "update",
}
# Columns for the name of a role, and for each number with the blank before it.
LABEL, COLUMN = 12, 7


@dataclass(frozen=True, slots=True)
class Judged:
    """A layer and why it is shown; they sort by it, the worst first."""

    layer: Layer
    accused: int
    nonfinite: bool
    kept: bool
    lost: float
    amax: float

    @property
    def matters(self) -> bool:
        """Whether there is anything to say about it beyond that it is well."""
        return bool(self.accused or self.nonfinite or self.kept) or self.lost >= LOST

    @property
    def rank(self) -> tuple[int, bool, bool, float, float]:
        """Findings weigh most, then NaN, then what is to be kept in FP32, then what a cast of gradients loses."""
        return (self.accused, self.nonfinite, self.kept, self.lost, self.amax)


def layers_lines(sheet: Sheet) -> list[Line]:
    """The section with its axis; a sentence when no layer was seen at all."""
    layers = sheet.profile.layers
    if not layers:
        return section("Layers", [[("  none was seen: no module of torch.nn ran forward", "warning")]])
    judged = sorted((_judge(layer, sheet) for layer in layers), key=lambda one: one.rank, reverse=True)
    chosen = [one for one in judged if one.matters][:SHOWN]
    title = "Layers that matter, worst first" if chosen else "No layer stands out; those nearest to the limits"
    chosen = chosen or judged[:HEALTHY]
    scales = _scales(sheet)
    ruler = Ruler.within(sheet.width - 2 - LABEL - COLUMN * len(scales), sheet.glyphs)
    out = [*_legend(sheet), *_axis(ruler, scales), []]
    for one in chosen:
        out += [*_layer(one.layer, ruler, scales, sheet), []]
    out += _rest(judged, len(chosen), sheet.width)
    return section(title, out)


def _judge(layer: Layer, sheet: Sheet) -> Judged:
    accused = max((f.severity.rank + 1 for f in sheet.findings if f.layer == layer.name), default=0)
    counts = [site.histogram for sites in (layer.sites, layer.observed) for site in sites.values()]
    return Judged(
        layer,
        accused,
        any(histogram.nan or histogram.inf for histogram in counts),
        any(one.layer == layer.name for one in sheet.recommendation.keep_fp32),
        max((layer.sites[role].histogram.lost(FP16) for role in GRADIENTS if role in layer.sites), default=0.0),
        layer.sites[ACTIVATION].histogram.amax if ACTIVATION in layer.sites else 0.0,
    )


def _scales(sheet: Sheet) -> list[tuple[str, float]]:
    """The columns of numbers: what they are called, and their loss scales."""
    columns = [("plain", 1.0), ("in use", sheet.scale_in_use), ("to use", sheet.scale_advised)]
    return [(name, value) for name, value in columns if value is not None]


def _legend(sheet: Sheet) -> list[Line]:
    which = "in use" if sheet.scale_in_use else "to use" if sheet.scale_advised else "plain"
    words = (
        f"A bar counts values by exponent, between the limits of float16; gradients times {scale(sheet.scale_drawn)} "
        f"({which}). Numbers: the share of a gradient that a cast rounds to zero at each loss scale, "
        "inf where it overflows. What lies beyond an end of the bar is counted at that end."
    )
    return [*paragraph(words, sheet.width, style="dim"), []]


def _axis(ruler: Ruler, scales: list[tuple[str, float]]) -> list[Line]:
    """Two lines: names of the columns; the borders of the zones, and the scales below those names."""
    names = "".join(f"{name:>{COLUMN}}" for name, _ in scales)
    values = "".join(f"{scale(value):>{COLUMN}}" for _, value in scales)
    heading = f"{ruler.heading():{ruler.width}}"
    # The last limit may stick out into the blanks before the first number.
    values = values[len(heading) - ruler.width :]
    return [
        [(f"{'':{2 + LABEL + ruler.width}}{names}", "dim")],
        [(f"  {'':{LABEL}}{heading}{values}", "dim")],
    ]


def _layer(layer: Layer, ruler: Ruler, scales: list[tuple[str, float]], sheet: Sheet) -> list[Line]:
    place = where(layer.source)
    about = "  ".join(part for part in (clean(layer.type), place) if part)
    name = fitted(layer.name or "(the model)", sheet.width - 2)
    heading: Line = [(f"  {name}", "name")]
    if about and cells(name) + cells(about) + 4 <= sheet.width:
        heading.append((f"  {about}", "dim"))
    out: list[Line] = [heading]
    for role in ROLES:
        site = layer.sites.get(role)
        if site is not None and _shown(role, site, layer):
            out.append(_row(role, site, ruler, scales, sheet))
    return [*out, *_update(layer, sheet), *_observed(layer, sheet)]


def _shown(role: str, site: Site, layer: Layer) -> bool:
    """Both gradients, unless one is healthy; activations near overflow; whatever holds NaN."""
    counts = site.histogram
    if counts.nan or counts.inf:
        return True
    if role == ACTIVATION:
        return counts.amax >= CLOSE or not any(one in layer.sites for one in GRADIENTS)
    if role not in GRADIENTS:
        return False
    worst = max(GRADIENTS, key=lambda one: layer.sites[one].histogram.lost(FP16) if one in layer.sites else -1.0)
    return role == worst or counts.lost(FP16) >= LOST


def _row(role: str, site: Site, ruler: Ruler, scales: list[tuple[str, float]], sheet: Sheet) -> Line:
    counts = site.histogram
    line: Line = [(f"  {LABELS[role]:{LABEL}}", "")]
    if role in GRADIENTS:
        line += ruler.bar(counts.shifted(round(log2(sheet.scale_drawn))))
        for _, value in scales:
            lost, over = counts.lost(FP16, value), counts.overflowing(FP16, value)
            text = "inf" if over else share(lost)
            style = "error" if over or lost >= 0.1 else "warning" if lost >= LOST else ""
            line.append((f"{text:>{COLUMN}}", style))
    else:
        line += ruler.bar(counts)
        over = counts.overflowing(FP16)
        told = f"  max {magnitude(counts.amax)}"
        style = "error" if over else "warning" if role == ACTIVATION and counts.amax >= CLOSE else ""
        line.append((told, style))
    if counts.nan or counts.inf:
        line.append((f"  {counts.nan} NaN, {counts.inf} inf", "error"))
    return line


def _update(layer: Layer, sheet: Sheet) -> list[Line]:
    """Updates so small that a weight in half precision would not move."""
    site = layer.sites.get(UPDATE)
    if site is None or not site.histogram.nonzero:
        return []
    told = {name: count / site.histogram.nonzero for name, count in site.swallowed.items()}
    if max(told.values(), default=0.0) < SWALLOWED:
        return []
    words = ", ".join(f"{share(part)} in {name}" for name, part in told.items())
    return beside(LABELS[UPDATE], f"too small to move the weight: {words}", "warning", sheet.width, LABEL)


def _observed(layer: Layer, sheet: Sheet) -> list[Line]:
    """What calibration foretold for the scale in use, against what the run in float16 then lost."""
    out: list[Line] = []
    for role in GRADIENTS:
        before, after = layer.sites.get(role), layer.observed.get(role)
        if before is None or after is None or after.dtype != FP16.name or not before.histogram.nonzero:
            continue
        if not after.histogram.elements:
            continue
        alive = before.histogram.nonzero / before.histogram.elements
        seen = 1 - after.histogram.nonzero / after.histogram.elements / alive
        foretold = before.histogram.lost(FP16, sheet.scale_in_use or 1.0)
        words = f"calibration foretold {share(foretold)} lost, {share(max(seen, 0.0))} was observed"
        out += beside(LABELS[role], words, "dim", sheet.width, LABEL)
    return out


def _rest(judged: list[Judged], shown: int, width: int) -> list[Line]:
    rest = judged[shown:]
    if not rest:
        return []
    words = f"{counted(len(rest), 'layer is', 'layers are')} not shown"
    if trouble := sum(one.matters for one in rest):
        words += f", {trouble} of which lose gradients or have findings"
    if any(role in one.layer.sites for one in rest for role in GRADIENTS):
        most = max(one.lost for one in rest)
        words += f"; {f'at most {share(most)}' if most else 'nothing'} of a gradient is lost there at scale 1"
    return paragraph(f"{words}.", width, style="dim")
