"""The recommended loss scale against exhaustive casting, closed forms and the 2018 paper."""

from __future__ import annotations

from dataclasses import replace
from math import erf, nan, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_doctor.diagnosis.gradients import largest_scale, relevant, restored, smallest_scale
from amp_doctor.diagnosis.profile import Layer, Outcome, Profile, Replay, Site, Steps
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.recommendation import LossScale
from amp_doctor.numerics.formats import FP16
from amp_doctor.numerics.histogram import ExponentHistogram
from tests.diagnosis.miniature import miniature


def run(*gradients: torch.Tensor | ExponentHistogram, role: str = "activation_grad") -> Profile:
    """A float32 run with one layer for each tensor of gradients."""
    counted = [
        ExponentHistogram.of(one.flatten().tolist()) if isinstance(one, torch.Tensor) else one for one in gradients
    ]
    layers = tuple(
        Layer(f"fc{number}", "Linear", None, number, {role: Site("float32", counts)})
        for number, counts in enumerate(counted)
    )
    return Profile(mode="calibrate", steps=Steps(50, 50, 50, 0), ranks=1, layers=layers)


def loss_scale(*gradients: torch.Tensor | ExponentHistogram) -> LossScale:
    return recommend(run(*gradients)).loss_scale


def normal(deviation: float, seed: int = 0, size: int = 2000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * deviation


def exhaustive(tensors: list[torch.Tensor]) -> float:
    """The largest power of two at which no cast of a scaled gradient to float16 is infinite."""
    return max(2.0**k for k in range(-30, 80) if all(bool((one * 2.0**k).half().isfinite().all()) for one in tensors))


@given(st.lists(st.integers(-28, 3), min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_scale_is_within_one_power_of_two_of_exhaustive_casting(exponents: list[int], seed: int) -> None:
    tensors = [normal(2.0**exponent, seed + number) for number, exponent in enumerate(exponents)]
    best, found = exhaustive(tensors), loss_scale(*tensors)
    assert found.admissible is not None
    assert found.init_scale is not None
    assert found.admissible[1] == best
    assert found.init_scale == max(found.admissible[0], best / 2)


@given(st.integers(-9, 9), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_gradients_a_power_of_two_smaller_want_a_scale_as_much_larger(k: int, seed: int) -> None:
    tensors = [normal(0.5, seed), normal(0.125, seed + 1)]
    before, after = loss_scale(*tensors), loss_scale(*[one * 2.0**-k for one in tensors])
    assert before.init_scale is not None
    assert after.init_scale == before.init_scale * 2.0**k


def test_the_largest_power_of_two_below_the_end_of_half() -> None:
    assert largest_scale(0.0052977) == 2**23
    assert largest_scale(65519.0) == 1
    assert largest_scale(65520.0) == 0.5
    assert largest_scale(65520.0 / 2**30) == 2**29
    assert loss_scale(torch.tensor([0.0052977, 0.001])).admissible == (1, 2**23)


@pytest.mark.parametrize("deviation", [1e-3, 1e-6, 1e-8, 1e-10])
def test_normal_gradients_want_the_scale_that_erf_gives(deviation: float) -> None:
    low = next(
        2.0**k for k in range(60) if erf(2.0**-24 / (2.0**k * deviation * sqrt(2))) <= 0.01
    )  # at most 1 % below the smallest number
    found = loss_scale(normal(deviation, size=100_000))
    assert found.admissible is not None
    assert found.needed == (low > 1)
    assert found.admissible[0] in (low, low * 2)  # a bin is a factor of two wide


# Figure 3 of Micikevicius et al., activation gradients of a Multibox SSD: 67 % zeros, 2 % in [2^-34, 2^-32), 2 % in
# [2^-24, 2^-23). The other 29 % are spread over what the figure shows.
SSD = ExponentHistogram(
    {-34: 100, -33: 100, -27: 80, -26: 100, -25: 130, -24: 200, **dict.fromkeys(range(-23, -8), 170)},
    zeros=6700,
    amax=1.5 * 2.0**-9,
    amin=2.0**-34,
    high=1.5 * 2.0**-9,
    low=-1.5 * 2.0**-9,
)


def test_the_ssd_detector_of_2018_needs_a_scale_of_at_least_8() -> None:
    found = recommend(run(SSD))
    assert found.loss_scale.needed
    assert found.loss_scale.at_least == 8
    assert found.loss_scale.init_scale == 2**23
    assert any("[2^-27, 2^-24)" in reason for reason in found.reasons)
    assert found.dtype == "float16"


def test_what_matters_ends_at_the_floor() -> None:
    assert relevant(SSD).nonzero == SSD.nonzero - 200
    assert relevant(SSD).amin == 2.0**-27
    # A layer whose gradients are all tiny has a floor of its own, 13 powers of two below its largest.
    tiny = ExponentHistogram({-60: 5, -40: 5}, amax=2.0**-40, amin=2.0**-60)
    assert relevant(tiny).exponents == {-40: 5}
    assert smallest_scale(tiny) == 2**16


def test_what_half_has_swallowed_is_put_back() -> None:
    exact = normal(1e-7, size=200_000)
    for scale, close in ((1.0, 0.04), (8.0, 0.001)):
        arrived = (exact * scale).half().float() / scale
        counts = ExponentHistogram.of(arrived.tolist())
        assert counts.lost(FP16, scale) == 0.0
        truth = ExponentHistogram.of(exact.tolist()).lost(FP16, scale)
        assert restored(counts, scale).lost(FP16, scale) == pytest.approx(truth, abs=close)
        assert restored(counts, scale).elements == counts.elements


@pytest.mark.parametrize("deviation", [1e-9, 1e-14, 1e-26])
def test_a_tiny_loss_wants_a_large_scale(deviation: float) -> None:
    tensors = [normal(deviation)]
    found = loss_scale(*tensors)
    assert found.admissible is not None
    assert found.init_scale == max(found.at_least, found.admissible[1] / 2) > 2**24
    assert found.admissible[1] == max(
        2.0**k for k in range(120) if bool((tensors[0].double() * 2.0**k).half().isfinite().all())
    )


@given(st.floats(-37.5, 38), st.floats(-37.5, -34))
@settings(max_examples=60, deadline=None)
def test_what_a_scaler_multiplies_stays_within_float32(loss: float, amax: float) -> None:
    """The scaled loss is finite, and so is the reciprocal, which is no subnormal number either."""
    profile = replace(run(torch.tensor([10**amax])), loss=(10**loss, nan))
    for scale in recommend(profile).loss_scale.admissible or ():
        product = torch.tensor(10**loss) * torch.tensor(scale)
        inverse = torch.tensor(scale).double().reciprocal().float()
        assert bool(product.isfinite())
        assert float(inverse) * scale == 1
        assert float(inverse) >= torch.finfo(torch.float32).smallest_normal


def test_the_end_of_float32_is_told() -> None:
    found = recommend(replace(run(normal(1e-30)), loss=(1e20, 2e20)))
    assert found.loss_scale.admissible is None
    found = recommend(replace(run(normal(1e-20)), loss=(1e20, 2e20)))
    assert found.loss_scale.admissible is not None
    assert found.loss_scale.admissible[1] == 2.0**59 < 2.0**127 / 2e20 < 2.0**60
    assert any("would leave the range of FP32" in reason for reason in found.reasons)


def test_the_loss_scale_fits_a_loss_in_half() -> None:
    replay = Replay(exact=True, outcomes=(Outcome("O1/float16", half_loss=1.0),))
    found = recommend(replace(run(normal(1e-6)), replay=replay))
    assert found.loss_scale.admissible is not None
    assert found.loss_scale.admissible[1] == 2.0**15
    assert found.loss_scale.init_scale == 2.0**14
    assert any("the loss is FP16 itself" in reason for reason in found.reasons)
    wide = recommend(replace(run(normal(1e-6)), replay=replace(replay, outcomes=(Outcome("O1/float16"),))))
    assert wide.loss_scale.init_scale is not None
    assert wide.loss_scale.init_scale > 2.0**24


def test_one_layer_that_vanishes_is_left_in_float32() -> None:
    many = [normal(1e-2, seed) for seed in range(5)]
    found = recommend(run(*many, normal(1e-16)))
    assert [one.layer for one in found.keep_fp32] == ["fc5"]
    assert "need a loss scale of" in found.keep_fp32[0].reason
    assert found.loss_scale == recommend(run(*many)).loss_scale
    assert found.dtype == "bfloat16"


def test_one_layer_that_explodes_is_left_in_float32() -> None:
    many = [normal(1e-4, seed) for seed in range(5)]
    found = recommend(run(normal(1e5), *many))
    assert [one.layer for one in found.keep_fp32] == ["fc0"]
    assert found.loss_scale == recommend(run(*many)).loss_scale


def test_many_layers_that_vanish_are_a_case_for_bfloat16() -> None:
    found = recommend(run(*[normal(1.0, seed) for seed in range(5)], *[normal(1e-14, seed) for seed in range(5)]))
    assert found.loss_scale == LossScale(needed=True, init_scale=None, admissible=None)
    assert found.loss_scale.at_least == 1.0
    assert (found.dtype, found.keep_fp32) == ("bfloat16", ())


def test_gradients_of_a_criterion_do_not_count() -> None:
    profile = miniature(
        """
        [[site]]
        layer = "criterion"
        role = "activation_grad"
        exponents = { 14 = 10 }
        [[site]]
        layer = "fc"
        role = "activation_grad"
        exponents = { -9 = 10 }
        """
    )
    assert recommend(profile).loss_scale.admissible == (1, largest_scale(1.5 * 2.0**-9))
