"""One layer -> its rows: what float16 keeps of it, as bars between the limits of float16, with the shares it loses."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.foretold import lost
from amp_doctor.diagnosis.profile import ACTIVATION, ACTIVATION_GRAD, GRADIENTS, ROLES, UPDATE, WEIGHT, WEIGHT_GRAD
from amp_doctor.numerics.formats import FP16
from amp_doctor.report.amounts import magnitude, share
from amp_doctor.report.amounts import scale as scale_words
from amp_doctor.report.bars import Ruler
from amp_doctor.report.layout import beside, fitted, paragraph
from amp_doctor.report.profile_verdict import where
from amp_doctor.report.text import Line, cells, clean

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Layer, Site
    from amp_doctor.report.sheet import Sheet

# What is pointed out: one per cent of a gradient lost at the scale drawn, ten at scale 1, which a loss scale cures;
# less than a factor 8 below overflow; updates lost to rounding.
LOST, LOST_PLAIN = 0.01, 0.1
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


def harm(site: Site, scale: float = 1.0) -> float:
    """The share of a gradient that float16 loses at a loss scale; 1.0 when it overflows there."""
    return 1.0 if site.histogram.overflowing(FP16, scale) else lost(site, FP16, scale)


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
        drawn = f"gradients times {scale_words(sheet.scale_drawn)} ({which})"
        words = (
            f"A bar counts values by exponent, between the limits of float16; {drawn}. Numbers: the share of a "
            "gradient that is rounded to zero at each loss scale, inf where it overflows. What lies beyond an end "
            "of the bar is counted at that end."
        )
        names = "".join(f"{name:>{COLUMN}}" for name, _ in self.scales)
        values = "".join(f"{scale_words(value):>{COLUMN}}" for _, value in self.scales)
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
                out.append(self._row(role, site))
        return [*out, *self._nonfinite(layer), *self._update(layer), *self._observed(layer)]

    def _row(self, role: str, site: Site) -> Line:
        counts = site.histogram
        line: Line = [(f"  {LABELS[role]:{LABEL}}", "")]
        if role in GRADIENTS:
            line += self.ruler.bar(counts.shifted(round(log2(self.sheet.scale_drawn))))
            for _, value in self.scales:
                gone, over = lost(site, FP16, value), counts.overflowing(FP16, value)
                text = "inf" if over else share(gone) if counts.nonzero else "-"
                style = "error" if over or gone >= 0.1 else "warning" if gone >= LOST else ""
                line.append((f"{text:>{COLUMN}}", style))
        else:
            line += self.ruler.bar(counts)
            style = "error" if counts.overflowing(FP16) else "warning" if counts.amax >= CLOSE else ""
            line.append((f"  max {magnitude(counts.amax)}", style))
        return line

    def _nonfinite(self, layer: Layer) -> list[Line]:
        """Counts of NaN and infinities, all roles in one row; masks and skipped steps make harmless ones."""
        told = []
        for role, site in layer.sites.items():
            counts = (("NaN", site.histogram.nan), ("inf", site.histogram.inf))
            if words := ", ".join(f"{count} {name}" for name, count in counts if count):
                told.append(f"{LABELS[role]} {words}")
        return self._words("not finite", "; ".join(told), "warning") if told else []

    def _update(self, layer: Layer) -> list[Line]:
        """Updates so small that a weight in half precision does not move; of no concern while it is in float32."""
        site, weight = layer.sites.get(UPDATE), layer.sites.get(WEIGHT)
        if site is None or weight is None or not site.histogram.nonzero or weight.dtype not in site.swallowed:
            return []
        part = site.swallowed[weight.dtype] / site.histogram.nonzero
        if part < SWALLOWED:
            return []
        return self._words(UPDATE, f"{share(part)} too small to move a weight in {weight.dtype}", "warning")

    def _observed(self, layer: Layer) -> list[Line]:
        """What calibration foretold for the scale in use, against what the run in float16 then lost."""
        out: list[Line] = []
        for role in GRADIENTS:
            before, after = layer.sites.get(role), layer.observed.get(role)
            if before is None or after is None or after.dtype != FP16.name:
                continue
            # What is NaN or infinite was not lost to rounding; a scaler skips such steps. Where everything is, the
            # zeros beside it are those of units that are off.
            broken = after.histogram.nan + after.histogram.inf
            finite = after.histogram.elements - broken
            if not before.histogram.nonzero or finite <= 0 or (broken and not after.histogram.nonzero):
                continue
            alive = before.histogram.nonzero / before.histogram.elements
            seen = 1 - after.histogram.nonzero / finite / alive
            foretold = lost(before, FP16, self.sheet.scale_in_use or 1.0)
            words = f"calibration foretold {share(foretold)} lost, {share(max(seen, 0.0))} was observed"
            out += self._words(role, words, "dim")
        return out

    def _words(self, role: str, words: str, style: str) -> list[Line]:
        return beside(LABELS.get(role, role), words, style, self.sheet.width, LABEL)


def _shown(role: str, site: Site, layer: Layer) -> bool:
    """Both gradients, unless one is healthy; activations near overflow."""
    if role == ACTIVATION:
        return site.histogram.amax >= CLOSE or not any(one in layer.sites for one in GRADIENTS)
    if role not in GRADIENTS:
        return False
    worst = max(GRADIENTS, key=lambda one: harm(layer.sites[one]) if one in layer.sites else -1.0)
    return role == worst or harm(site) >= LOST
