"""One layer -> its rows: what float16 keeps of it, as bars between the limits of float16, with the shares it loses."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import ACTIVATION, ACTIVATION_GRAD, GRADIENTS, ROLES, UPDATE, WEIGHT, WEIGHT_GRAD
from amp_doctor.numerics.formats import FP16
from amp_doctor.report.amounts import magnitude, scale, share
from amp_doctor.report.bars import Ruler
from amp_doctor.report.layout import beside, fitted, paragraph
from amp_doctor.report.profile_verdict import where
from amp_doctor.report.text import Line, cells, clean

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Layer, Site
    from amp_doctor.numerics.histogram import ExponentHistogram
    from amp_doctor.report.sheet import Sheet

# What is pointed out: one per cent of a gradient lost; less than a factor 8 below overflow; updates lost to rounding.
LOST = 0.01
CLOSE = FP16.overflow_threshold / 8
SWALLOWED = 0.1
LABELS = {
    ACTIVATION: "activation",
    ACTIVATION_GRAD: "act. grad",
    WEIGHT: "weight",
    WEIGHT_GRAD: "weight grad",
    UPDATE: "update",
}
# Columns for the name of a role, and for each number with the blank before it.
LABEL, COLUMN = 12, 7


def harm(site: Site) -> float:
    """The share of a gradient that float16 loses at scale 1; 1.0 when even there it overflows."""
    return 1.0 if site.histogram.overflowing(FP16) else site.histogram.lost(FP16)


@dataclass(frozen=True, slots=True)
class Table:
    """`scales` are the columns of numbers: what they are called, and their loss scales."""

    sheet: Sheet
    ruler: Ruler
    scales: tuple[tuple[str, float], ...]

    @classmethod
    def on(cls, sheet: Sheet) -> Table:
        """The table that fits the sheet."""
        columns = [("plain", 1.0), ("in use", sheet.scale_in_use), ("best", sheet.scale_advised)]
        scales = tuple((name, value) for name, value in columns if value is not None)
        return cls(sheet, Ruler.within(sheet.width - 2 - LABEL - COLUMN * len(scales), sheet.glyphs), scales)

    def heading(self) -> list[Line]:
        """What is drawn; then names of the columns, the borders of the zones and the scales below those names."""
        sheet = self.sheet
        which = "in use" if sheet.scale_in_use else "best" if sheet.scale_advised else "plain"
        words = (
            "A bar counts values by exponent, between the limits of float16; gradients times "
            f"{scale(sheet.scale_drawn)} ({which}). Numbers: the share of a gradient that a cast rounds to zero at "
            "each loss scale, inf where it overflows. What lies beyond an end of the bar is counted at that end."
        )
        names = "".join(f"{name:>{COLUMN}}" for name, _ in self.scales)
        values = "".join(f"{scale(value):>{COLUMN}}" for _, value in self.scales)
        borders = f"{self.ruler.heading():{self.ruler.width}}"
        # The last limit may stick out into the blanks before the first number.
        values = values[len(borders) - self.ruler.width :]
        return [
            *paragraph(words, sheet.width, style="dim"),
            [],
            [(f"{'':{2 + LABEL + self.ruler.width}}{names}", "dim")],
            [(f"  {'':{LABEL}}{borders}{values}", "dim")],
        ]

    def rows(self, layer: Layer) -> list[Line]:
        """The layer's name, type and place, and a row for each role that has something to show."""
        about = "  ".join(part for part in (clean(layer.type), where(layer.source)) if part)
        name = fitted(layer.name or "(the model)", self.sheet.width - 2)
        heading: Line = [(f"  {name}", "name")]
        if about and cells(name) + cells(about) + 4 <= self.sheet.width:
            heading.append((f"  {about}", "dim"))
        out = [heading]
        for role in ROLES:
            site = layer.sites.get(role)
            if site is not None and _shown(role, site, layer):
                out += self._row(role, site.histogram)
        return [*out, *self._update(layer), *self._observed(layer)]

    def _row(self, role: str, counts: ExponentHistogram) -> list[Line]:
        line: Line = [(f"  {LABELS[role]:{LABEL}}", "")]
        if role in GRADIENTS:
            line += self.ruler.bar(counts.shifted(round(log2(self.sheet.scale_drawn))))
            for _, value in self.scales:
                lost, over = counts.lost(FP16, value), counts.overflowing(FP16, value)
                text = "inf" if over else share(lost)
                style = "error" if over or lost >= 0.1 else "warning" if lost >= LOST else ""
                line.append((f"{text:>{COLUMN}}", style))
        else:
            line += self.ruler.bar(counts)
            style = "error" if counts.overflowing(FP16) else "warning" if counts.amax >= CLOSE else ""
            line.append((f"  max {magnitude(counts.amax)}", style))
        if not counts.nan and not counts.inf:
            return [line]
        return [line, [(f"  {'':{LABEL}}{counts.nan} NaN, {counts.inf} inf", "warning")]]

    def _update(self, layer: Layer) -> list[Line]:
        """Updates so small that a weight in half precision would not move."""
        site = layer.sites.get(UPDATE)
        if site is None or not site.histogram.nonzero:
            return []
        told = {name: count / site.histogram.nonzero for name, count in site.swallowed.items()}
        if max(told.values(), default=0.0) < SWALLOWED:
            return []
        words = ", ".join(f"{share(part)} in {name}" for name, part in told.items())
        return self._words(UPDATE, f"too small to move the weight: {words}", "warning")

    def _observed(self, layer: Layer) -> list[Line]:
        """What calibration foretold for the scale in use, against what the run in float16 then lost."""
        out: list[Line] = []
        for role in GRADIENTS:
            before, after = layer.sites.get(role), layer.observed.get(role)
            if before is None or after is None or after.dtype != FP16.name:
                continue
            if not before.histogram.nonzero or not after.histogram.elements:
                continue
            alive = before.histogram.nonzero / before.histogram.elements
            seen = 1 - after.histogram.nonzero / after.histogram.elements / alive
            foretold = before.histogram.lost(FP16, self.sheet.scale_in_use or 1.0)
            words = f"calibration foretold {share(foretold)} lost, {share(max(seen, 0.0))} was observed"
            out += self._words(role, words, "dim")
        return out

    def _words(self, role: str, words: str, style: str) -> list[Line]:
        return beside(LABELS[role], words, style, self.sheet.width, LABEL)


def _shown(role: str, site: Site, layer: Layer) -> bool:
    """Both gradients, unless one is healthy; activations near overflow; whatever holds NaN."""
    counts = site.histogram
    if counts.nan or counts.inf:
        return True
    if role == ACTIVATION:
        return counts.amax >= CLOSE or not any(one in layer.sites for one in GRADIENTS)
    if role not in GRADIENTS:
        return False
    worst = max(GRADIENTS, key=lambda one: harm(layer.sites[one]) if one in layer.sites else -1.0)
    return role == worst or harm(site) >= LOST
