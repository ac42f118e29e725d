"""Exponent histogram -> a bar between the limits of float16; a list of losses -> a sparkline."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, isnan
from typing import TYPE_CHECKING

from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.numerics.histogram import ExponentHistogram
    from amp_doctor.report.text import Line

# From nothing to full; the second for terminals that know ASCII only.
BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"
LOWEST, HIGHEST = -60, 20
SPARK_MARKS = {"nan": "x", "inf": "^"}


@dataclass(frozen=True, slots=True)
class Ruler:
    """Exponents from 2^LOWEST to 2^HIGHEST in columns of `step`, parted where float16 changes what it keeps."""

    step: int
    glyphs: str = BLOCKS

    @classmethod
    def within(cls, room: int, glyphs: str = BLOCKS) -> Ruler:
        """The finest ruler that takes at most `room` columns; the coarsest when none does."""
        rulers = [cls(step, glyphs) for step in (1, 2, 3, 4, 6)]
        return next((ruler for ruler in rulers if ruler.width <= room), rulers[-1])

    @property
    def zones(self) -> tuple[tuple[int, int, str], ...]:
        """First exponent, first exponent beyond, and style: lost, subnormal, normal, overflowing."""
        zero, normal, over = FP16.min_subnormal_exponent - 1, FP16.min_exponent, FP16.max_exponent + 1
        return (
            (LOWEST, zero, "error"),
            (zero, normal, "warning"),
            (normal, over, "fix"),
            (over, HIGHEST + 1, "error"),
        )

    @property
    def width(self) -> int:
        """Columns of a bar, those between the zones included."""
        return sum(ceil((stop - start) / self.step) for start, stop, _ in self.zones) + len(self.zones) - 1

    def bar(self, histogram: ExponentHistogram) -> Line:
        """One column per `step` exponents, as high as it is full compared with the fullest; `|` parts the zones."""
        columns = [self._columns(histogram, start, stop) for start, stop, _ in self.zones]
        fullest = max(max(zone) for zone in columns) or 1
        line: Line = []
        for zone, (_, _, style) in zip(columns, self.zones, strict=True):
            line += [("|", "dim"), ("".join(_level(count / fullest, self.glyphs) for count in zone), style)]
        return line[1:]

    def _columns(self, histogram: ExponentHistogram, start: int, stop: int) -> list[int]:
        """Counts, column by column; what lies beyond the ends of the ruler is counted at its ends."""
        counts = [0] * ceil((stop - start) / self.step)
        # In the lowest zone it is the outer column that may be thinner, so that the others end at the border.
        lead = -(stop - start) % self.step if start == LOWEST else 0
        for exponent, count in histogram.exponents.items():
            place = min(max(exponent, LOWEST), HIGHEST)
            if start <= place < stop:
                counts[(place - start + lead) // self.step] += count
        return counts

    def heading(self) -> str:
        """The borders of the zones above their places, with words where there is room for them."""
        lost, subnormal, normal, _over = [ceil((stop - start) / self.step) for start, stop, _ in self.zones]
        zero, tiny, over = (f"2^{start}" for start, _, _ in self.zones[1:])
        left = f"rounded to zero {zero}" if lost > 22 else f"lost {zero}" if lost > 11 else zero
        middle = next((word for word in (" subnormal", " sub") if len(word) <= subnormal), "")
        right = f"{tiny} normal" if normal > len(tiny) + 7 else tiny
        return f"{left:>{lost}}|{middle:<{subnormal}}|{right:<{normal}}|{over}"


def sparkline(values: Sequence[float], room: int, glyphs: str = BLOCKS) -> Line:
    """`values` in at most `room` columns, their means where several share one; NaN is `x`, infinity `^`."""
    per_column = max(1, ceil(len(values) / max(room, 1)))
    columns = [values[start : start + per_column] for start in range(0, len(values), per_column)]
    means = [sum(column) / len(column) for column in columns if all(isfinite(value) for value in column)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    line: Line = []
    for column in columns:
        if any(isnan(value) for value in column):
            line.append((SPARK_MARKS["nan"], "error"))
        elif not all(isfinite(value) for value in column):
            line.append((SPARK_MARKS["inf"], "error"))
        else:
            mean = sum(column) / len(column)
            line.append((_spark((mean - low) / (high - low) if high > low else 0.0, glyphs), "trail"))
    return line


def _level(filled: float, glyphs: str) -> str:
    """A column that holds anything at all is drawn."""
    return glyphs[ceil(filled * (len(glyphs) - 1))] if filled > 0 else glyphs[0]


def _spark(height: float, glyphs: str) -> str:
    """A point of a curve is never blank."""
    return glyphs[1 + round(height * (len(glyphs) - 2))]
