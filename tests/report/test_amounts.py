"""Numbers in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_doctor.report.amounts import magnitude, scale, share, size


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (0.0, "0"),
        (1e-9, "<0.1%"),
        (0.001, "0.1%"),
        (0.0312, "3.1%"),
        (0.0996, "10%"),
        (0.41, "41%"),
        (0.9999, "99%"),
        (1.0, "100%"),
    ],
)
def test_shares(part: float, words: str) -> None:
    assert share(part) == words


@given(st.floats(0, 1))
def test_a_share_fits_its_column_and_only_nothing_is_0(part: float) -> None:
    assert len(share(part)) <= 5
    assert (share(part) == "0") == (part == 0)
    assert (share(part) == "100%") == (part == 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (65520.0, "65520"),
        (0.0124, "0.0124"),
        (2.5, "2.5"),
        (3.14e-9, "3.14e-9"),
        (2.8e9, "2.8e9"),
        (0.0, "0"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_magnitudes(value: float, words: str) -> None:
    assert magnitude(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.0, "1"),
        (65536.0, "65536"),
        (2.0**19, "524288"),
        (2.0**20, "2^20"),
        (0.125, "2^-3"),
        (1000.0, "1000"),
        (0.0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_loss_scales(value: float, words: str) -> None:
    assert scale(value) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (16 * 2**20, "16.0 MiB"), (3e12, "2794 GiB")],
)
def test_sizes(count: float, words: str) -> None:
    assert size(count) == words
