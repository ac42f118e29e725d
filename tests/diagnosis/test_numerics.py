"""Formats and exponent histograms against torch: its limits, its casts, and the laws of shifting and adding."""

from __future__ import annotations

from math import erf, inf, isnan, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_doctor.numerics.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, Format
from amp_doctor.numerics.histogram import ExponentHistogram

TORCH = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
CAST = [pytest.param(FORMATS[name], dtype, id=name) for name, dtype in TORCH.items() if name != "float32"]
# What float32 holds, subnormals aside: a shift within float64 is exact then.
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=False)
FINITE = st.floats(width=32, min_value=2.0**-100, max_value=2.0**100, allow_subnormal=False)
LISTS = st.lists(FLOATS, max_size=40)


def cast(value: float, dtype: torch.dtype) -> float:
    # From float32: a cast from float64 would round twice.
    return float(torch.tensor(value, dtype=torch.float32).to(dtype))


def towards(value: float, other: float) -> float:
    """The next float32."""
    return float(torch.nextafter(torch.tensor(value), torch.tensor(other)))


@pytest.mark.parametrize("name", TORCH)
def test_the_table_is_that_of_torch(name: str) -> None:
    known, info = FORMATS[name], torch.finfo(TORCH[name])
    assert known.max == info.max
    assert known.min_normal == info.smallest_normal
    assert known.eps == info.eps


@pytest.mark.parametrize(("to", "dtype"), CAST)
def test_thresholds_are_those_of_a_cast(to: Format, dtype: torch.dtype) -> None:
    assert cast(to.zero_threshold, dtype) == 0
    assert cast(towards(to.zero_threshold, 1.0), dtype) == to.min_subnormal
    assert cast(towards(to.overflow_threshold, 0.0), dtype) == to.max
    assert cast(to.overflow_threshold, dtype) == (to.max if to.saturates else inf)


def test_the_numbers_everybody_quotes() -> None:
    assert (FP16.max, FP16.overflow_threshold) == (65504, 65520)
    assert (FP16.min_normal, FP16.min_subnormal, FP16.zero_threshold) == (2**-14, 2**-24, 2**-25)
    assert (FP16.eps, BF16.eps, FP32.eps) == (2**-10, 2**-7, 2**-23)
    assert (E5M2.overflow_threshold, E4M3.max, BF16.min_subnormal) == (61440, 448, 2**-133)


@given(LISTS, LISTS, LISTS)
@settings(max_examples=100, deadline=None)
def test_adding_is_counting_together(a: list[float], b: list[float], c: list[float]) -> None:
    of = ExponentHistogram.of
    assert of(a) + of(b) == of([*a, *b])
    assert (of(a) + of(b)) + of(c) == of(a) + (of(b) + of(c))
    assert of(a) + of(b) == of(b) + of(a)
    assert of(a) + ExponentHistogram() == of(a) == ExponentHistogram() + of(a)


@given(st.lists(FLOATS.filter(lambda x: not isnan(x)), max_size=40), st.integers(-300, 300))
@settings(max_examples=100, deadline=None)
def test_a_loss_scale_is_a_shift(values: list[float], k: int) -> None:
    assert ExponentHistogram.of(values).shifted(k) == ExponentHistogram.of([value * 2.0**k for value in values])
    assert ExponentHistogram.of(values).shifted(k).shifted(-k) == ExponentHistogram.of(values)


@given(st.lists(FINITE, min_size=1, max_size=60), st.integers(-60, 60), st.sampled_from([FP16, BF16, E5M2]))
@settings(max_examples=100, deadline=None)
def test_scaling_first_or_asking_for_the_scale_is_the_same(values: list[float], k: int, to: Format) -> None:
    counts = ExponentHistogram.of(values)
    assert counts.lost(to, 2.0**k) == counts.shifted(k).lost(to)
    assert counts.subnormal(to, 2.0**k) == counts.shifted(k).subnormal(to)
    assert counts.overflowing(to, 2.0**k) == pytest.approx(counts.shifted(k).overflowing(to))


@given(st.integers(0, 2**32), st.floats(1e-9, 1e-3), st.integers(0, 16))
@settings(max_examples=25, deadline=None)
def test_lost_is_what_a_cast_loses(seed: int, deviation: float, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(4096, generator=generator, dtype=torch.float64).mul_(deviation).float()
    tensor = tensor[tensor != 0]
    counts = ExponentHistogram.of(tensor.tolist())
    scaled = (tensor * 2.0**k).half()
    assert counts.lost(FP16, 2.0**k) == pytest.approx(float((scaled == 0).sum()) / tensor.numel())
    normal = (tensor * 2.0**k).abs() >= FP16.min_normal
    assert counts.subnormal(FP16, 2.0**k) == pytest.approx(float(((scaled != 0) & ~normal).sum()) / tensor.numel())


@given(st.integers(0, 2**32), st.floats(1e3, 1e6))
@settings(max_examples=25, deadline=None)
def test_overflow_is_seen_exactly_when_a_cast_overflows(seed: int, deviation: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(256, generator=generator) * deviation
    share = float(tensor.half().isinf().sum()) / tensor.numel()
    found = ExponentHistogram.of(tensor.tolist()).overflowing(FP16)
    # The bin of 65520 holds 32768 to 65536; all but the last 16 of it stay finite.
    assert (found > 0) == (share > 0)
    assert found == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("scale", [1, 8, 128, 1024, 65536])
@pytest.mark.parametrize("deviation", [1e-6, 1e-8])
def test_normal_gradients_are_lost_as_erf_says(deviation: float, scale: int) -> None:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(200_000, generator=generator, dtype=torch.float64) * deviation
    counts = ExponentHistogram.of(tensor.tolist())
    exact = erf(2**-25 / (scale * deviation * sqrt(2)))
    assert counts.lost(FP16, scale) == pytest.approx(exact, abs=0.005)


def test_zeros_and_what_is_not_finite_are_no_part_of_a_share() -> None:
    counts = ExponentHistogram.of([0.0, -0.0, inf, -inf, float("nan"), 2.0**-30, 1.0])
    assert (counts.zeros, counts.positive_inf, counts.negative_inf, counts.nan, counts.nonzero) == (2, 1, 1, 1, 2)
    assert counts.lost(FP16) == 0.5
    assert ExponentHistogram.of([0.0, inf]).lost(FP16) == 0.0
