"""Histograms as bars between the limits of float16, and losses as sparklines."""

from __future__ import annotations

from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_doctor.numerics.formats import FP16
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.report.bars import ASCII, BLOCKS, Ruler, sparkline

if TYPE_CHECKING:
    from amp_doctor.report.text import Line

# Columns of the zones and of the three borders between them, by exponents per column.
WIDTHS = {1: 84, 2: 45, 3: 31, 4: 25, 6: 17}


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def bar(step: int, *exponents: int, glyphs: str = ASCII) -> list[str]:
    """The zones of the bar of a histogram with one element in each of `exponents`."""
    return text(Ruler(step, glyphs).bar(ExponentHistogram(dict.fromkeys(exponents, 1)))).split("|")


@pytest.mark.parametrize("step", WIDTHS)
def test_a_bar_is_as_wide_as_its_ruler_and_its_heading(step: int) -> None:
    ruler = Ruler(step)
    assert ruler.width == WIDTHS[step] == len(text(ruler.bar(ExponentHistogram())))
    heading = ruler.heading()
    borders = [index for index, sign in enumerate(text(ruler.bar(ExponentHistogram()))) if sign == "|"]
    assert [index for index, sign in enumerate(heading) if sign == "|"] == borders
    assert all(limit in heading for limit in ("2^-25|", "|2^-14", "|2^16"))


@pytest.mark.parametrize(("room", "step"), [(200, 1), (84, 1), (83, 2), (45, 2), (44, 3), (30, 4), (20, 6), (3, 6)])
def test_the_finest_ruler_that_fits_is_taken(room: int, step: int) -> None:
    assert Ruler.within(room).step == step


@pytest.mark.parametrize("step", WIDTHS)
@given(exponent=st.integers(-149, 127))
def test_an_element_is_drawn_in_the_zone_that_a_cast_puts_it_into(step: int, exponent: int) -> None:
    zones = [zone.strip() for zone in bar(step, exponent)]
    value = ExponentHistogram.of([1.5 * 2.0**exponent])
    lost, over = value.lost(FP16), value.overflowing(FP16)
    subnormal = value.subnormal(FP16)
    assert [bool(zone) for zone in zones] == [lost > 0, subnormal > 0, not (lost or over or subnormal), over > 0]


def test_the_highest_column_is_the_fullest_and_a_single_element_is_seen() -> None:
    counts = ExponentHistogram({-13: 1, -12: 1000, -11: 500})
    assert text(Ruler(1, BLOCKS).bar(counts)).split("|")[2].startswith(" ▁█▄ ")
    assert text(Ruler(1, ASCII).bar(counts)).split("|")[2].startswith(" .@= ")


def test_what_lies_beyond_the_ruler_is_counted_at_its_ends() -> None:
    zones = bar(1, -149, 120)
    assert (zones[0][0], zones[3][-1]) == ("@", "@")


def test_columns_end_at_the_borders() -> None:
    # Two exponents per column: 2^-27 and 2^-26 are the last that are lost, and stand in one column.
    assert bar(2, -27, -26)[0][-2:] == " @"
    assert bar(2, -28, -27)[0][-2:] == "@@"


def test_a_sparkline_goes_from_low_to_high() -> None:
    assert text(sparkline([0, 1, 2, 3], 60, "012345")) == "1245"
    assert text(sparkline([2, 2, 2], 60, "012345")) == "111"
    assert sparkline([], 60) == []


def test_a_sparkline_marks_what_is_not_finite() -> None:
    line = sparkline([1.0, float("nan"), float("inf"), 2.0], 60, "012345")
    assert text(line) == "1x^5"
    assert [style for _, style in line] == ["trail", "error", "error", "trail"]
    assert text(sparkline([float("nan")] * 3, 60)) == "xxx"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=300), st.integers(1, 80))
def test_a_sparkline_keeps_to_its_room_and_hides_no_nan(values: list[float], room: int) -> None:
    shown = text(sparkline(values, room))
    assert len(shown) <= room
    assert ("x" in shown) == any(isnan(value) for value in values)


@given(st.dictionaries(st.integers(-149, 127), st.integers(1, 10**9)), st.integers(20, 120))
def test_a_bar_is_drawn_of_anything(counts: dict[int, int], room: int) -> None:
    ruler = Ruler.within(room)
    line = text(ruler.bar(ExponentHistogram(counts)))
    assert len(line) == ruler.width
    assert all(low < high for low, high in pairwise(start for start, _, _ in ruler.zones))
