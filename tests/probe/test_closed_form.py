"""What a probe counts against what is known without it: erf, casts of every element, brute force over bit patterns."""

from __future__ import annotations

from math import erf, inf, sqrt
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_doctor.diagnosis.gradients import largest_scale
from amp_doctor.diagnosis.profile import ACTIVATION_GRAD, WEIGHT_GRAD
from amp_doctor.numerics.formats import BF16, FP16
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe import Probe, count
from amp_doctor.probe.count import Tally, countable
from tests.probe.planted import Planted, planted

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLES = (ACTIVATION_GRAD, WEIGHT_GRAD)
SCALES = (1, 8, 128, 1024, 65536)
DEVIATIONS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)
HALF_A_POINT = 0.005


@pytest.fixture(params=["one pass", "operators"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test here runs twice: with the loop that Numba compiles, and as it goes without Numba."""
    assert count.loop is not None, "Numba is among the dev dependencies"
    way: str = request.param
    with pytest.MonkeyPatch.context() as patch:
        if way == "operators":
            patch.setattr(count, "loop", None)
        yield way


def normal(deviation: float, seed: int = 0, size: int = 1 << 16) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul_(deviation).float()


def share_lost(deviation: float, scale: float) -> float:
    """Of N(0, s) what a cast of scale * x to float16 makes zero: erf(2^-25 / (scale s sqrt 2))."""
    return erf(2.0**-25 / (scale * deviation * sqrt(2)))


def share_subnormal(deviation: float, scale: float) -> float:
    return erf(2.0**-14 / (scale * deviation * sqrt(2))) - share_lost(deviation, scale)


# In true units whatever the scale that the gradients were seen under.
@pytest.mark.parametrize("seen_under", [None, 1.0, 2.0**16, 2.0**24, 1000.0, 3e5])
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_shares_lost_agree_with_erf(deviation: float, seen_under: float | None) -> None:
    sites = planted([normal(deviation, 0), normal(deviation, 1)], seen_under)
    for role in ROLES:
        counts = sites[role].histogram
        assert counts.elements == 2 << 16
        for scale in SCALES:
            assert counts.lost(FP16, scale) == pytest.approx(share_lost(deviation, scale), abs=HALF_A_POINT)
            assert counts.subnormal(FP16, scale) == pytest.approx(share_subnormal(deviation, scale), abs=HALF_A_POINT)
            assert counts.lost(BF16, scale) == 0


@pytest.mark.parametrize("seen_under", [None, 2.0**16])
def test_extremes_are_exact_in_true_units(seen_under: float | None) -> None:
    values = normal(1e-6)
    for role in ROLES:
        counts = planted([values], seen_under)[role].histogram
        assert counts.amax == float(values.abs().max())
        assert counts.amin == float(values[values != 0].abs().min())
        assert (counts.high, counts.low) == (float(values.max()), float(values.min()))


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_shares_lost_agree_with_casts(deviation: float, scale: float) -> None:
    values = normal(deviation, 7)
    cast = (values.double() * scale).half()
    lost = float(((cast == 0) & (values != 0)).sum() / (values != 0).sum())
    counts = planted([values])[WEIGHT_GRAD].histogram
    # 2^-25 / scale is the edge of a bin: nothing is interpolated.
    assert counts.lost(FP16, scale) == pytest.approx(lost, abs=1e-12)


def test_scales_of_different_steps_are_taken_out() -> None:
    values = [normal(1e-7, seed, 4096) for seed in range(4)]
    model = Planted(values[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Probe(steps=4, mode="observe") as probe:
        for number, one in enumerate(values):
            optimizer.zero_grad()
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (5 * number))
            scaler.scale((model() * one).sum()).backward()
            scaler.step(optimizer)
    assert probe.profile.layers[0].sites[WEIGHT_GRAD].histogram == ExponentHistogram.of(torch.cat(values).tolist())


EDGES = {
    65503.99: "normal",
    65519.99: "normal",
    65520.0: "overflows",
    2.0**17: "overflows",
    2.0**-14: "normal",
    2.0**-14 - 2.0**-30: "subnormal",
    2.0**-24: "subnormal",
    2.0**-25 + 2.0**-40: "subnormal",
    2.0**-25: "lost",
    2.0**-30: "lost",
}


@pytest.mark.parametrize("seen_under", [None, 2.0**10])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("value", "fate"), EDGES.items())
def test_the_edges_of_half(value: float, fate: str, scale: int, seen_under: float | None) -> None:
    counts = planted([torch.tensor([value / scale, -value / scale])], seen_under)[ACTIVATION_GRAD].histogram
    found = {
        "lost": counts.lost(FP16, scale),
        "subnormal": counts.subnormal(FP16, scale),
        "overflows": counts.overflowing(FP16, scale),
    }
    assert found == {name: float(name == fate) for name in found}
    cast = torch.tensor(value, dtype=torch.float64).half()
    assert {"lost": cast == 0, "overflows": cast == inf}.get(fate, cast != 0)


@pytest.mark.parametrize("amax", [0.0052977, 1.0, 0.999, 65504.0, 65519.0, 65520.0, 3e-7, 1.5e3])
def test_the_largest_scale_is_that_of_casts(amax: float) -> None:
    value = torch.tensor(amax, dtype=torch.float64)
    best = max(2.0**k for k in range(-20, 60) if (value * 2.0**k).half().isfinite())
    assert largest_scale(amax) == best
    assert amax != 0.0052977 or best == 2.0**23


@pytest.mark.parametrize("seen_under", [None, 2.0**16])
@pytest.mark.parametrize("deviation", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_the_recommended_scale_is_within_a_power_of_two_of_exhaustive_casting(
    deviation: float, seen_under: float | None
) -> None:
    values = [normal(deviation, seed) for seed in range(3)]
    best = max(2.0**k for k in range(-20, 60) if all((one.double() * 2.0**k).half().isfinite().all() for one in values))
    model = Planted(values[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=seen_under or 1.0, enabled=seen_under is not None)
    with Probe(steps=3, mode="observe") as probe:
        for one in values:
            optimizer.zero_grad()
            scaler.scale((model() * one).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    scale = probe.recommendation.loss_scale
    assert scale.admissible is not None
    assert scale.init_scale is not None
    assert scale.admissible[1] == best
    assert best / 2 <= scale.init_scale <= best


WIDTHS = {
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float64: torch.int64,
}
SHAPES = [(), (1,), (3,), (17, 5), (4, 3, 6, 5), (16_383,), (16_384,), (300, 301)]
LAYOUTS = {
    "contiguous": lambda values: values,
    "transposed": lambda values: values.transpose(0, -1) if values.dim() > 1 else values,
    "every second": lambda values: values[..., ::2] if values.dim() else values,
    "a column": lambda values: values[..., :1] if values.dim() else values,
    "repeated": lambda values: values[..., :1].expand(values.shape) if values.dim() else values.expand(7),
    "offset": lambda values: values[1:] if values.dim() and values.shape[0] > 1 else values,
    "channels last": lambda values: values.to(memory_format=torch.channels_last) if values.dim() == 4 else values,
}


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_bits_are_counted_as_by_brute_force(dtype: torch.dtype, layout: str, shape: tuple[int, ...]) -> None:
    """Random bits hold everything there is: subnormals, NaN, both infinities, both zeros once they are put in."""
    values = LAYOUTS[layout](random_bits(dtype, shape, seed=len(shape)))
    before = values.clone()
    tally = Tally()
    nonfinite = tally.add(values)
    assert tally.histogram() == ExponentHistogram.of(values.double().flatten().tolist())
    assert nonfinite == (not bool(values.isfinite().all()))
    assert torch.equal(values.nan_to_num(0.5), before.nan_to_num(0.5))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_two_threads_count_a_large_tensor_as_one_does(dtype: torch.dtype, threads: int) -> None:
    values = random_bits(dtype, (300_001,), seed=5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tally = Tally()
        tally.add(values)
        tally.add(values[:100_000])
    finally:
        torch.set_num_threads(before)
    expected = ExponentHistogram.of(values.double().tolist())
    assert tally.histogram() == expected + ExponentHistogram.of(values[:100_000].double().tolist())


@given(
    st.lists(
        st.tuples(st.sampled_from(list(WIDTHS)), st.integers(1, 40), st.integers(0, 99), st.integers(-20, 20)),
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_tallies_add_up_over_tensors_scales_and_formats(batches: list[tuple[torch.dtype, int, int, int]]) -> None:
    tally, expected = Tally(), ExponentHistogram()
    for dtype, size, seed, shift in batches:
        # What float64 alone can hold has no true unit in a Python float at either end.
        values = random_bits(dtype, (size,), seed)
        values = values[(values == 0) | (values.abs() < 1e300) & (values.abs() > 1e-290) | ~values.isfinite()]
        if values.numel():
            tally.add(values, shift)
            expected += ExponentHistogram.of(values.double().tolist()).shifted(-shift)
    assert tally.histogram() == expected


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
@pytest.mark.parametrize(
    "special", [0.0, -0.0, inf, -inf, float("nan"), 1.0, -65504.0, 2.0**-24, 2.0**-133, 2.0**-149, 5e-324]
)
@pytest.mark.parametrize("size", [1, 5, 20_000])
def test_a_constant(dtype: torch.dtype, special: float, size: int, way: str) -> None:
    values = torch.full((size,), special, dtype=torch.float64).to(dtype)
    if way == "operators" and dtype is torch.float32 and size > 16_384 and 0 < special < 2.0**-133:
        # Alone in a large tensor, these are taken for the zeros that the upper half of their bits shows.
        values = torch.zeros(size)
    tally = Tally()
    tally.add(values)
    assert tally.histogram() == ExponentHistogram.of(values.double().tolist())


@pytest.mark.parametrize(
    "not_counted",
    [
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, device="meta"),
        None,
        "text",
        3.0,
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_what_is_not_counted(not_counted: object) -> None:
    assert countable(not_counted) is None


def test_of_a_sparse_gradient_the_values_are_counted() -> None:
    values = countable(
        torch.sparse_coo_tensor(torch.tensor([[1, 1, 4]]), torch.tensor([1.0, 2.0, 0.5]), (9,), check_invariants=True)
    )
    assert values is not None
    assert values.tolist() == [1.0, 2.0, 0.5]


def random_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Uniform bit patterns, then a few zeros."""
    whole = WIDTHS[dtype]
    generator = torch.Generator().manual_seed(seed)
    limits = torch.iinfo(whole)
    bits = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=torch.int64).to(whole)
    values = bits.view(dtype)
    return torch.where(torch.rand(shape, generator=generator) < 0.1, torch.zeros((), dtype=dtype), values)
