"""Counting into device buffers, run here on CPU tensors: the same operations, other memory."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe import Probe
from amp_doctor.probe.device_count import DevicePool

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile

CPU = torch.device("cpu")


def counted(*tensors: torch.Tensor, shift: int = 0) -> ExponentHistogram:
    pool = DevicePool(CPU)
    tally = pool.tally()
    for tensor in tensors:
        tally.add(tensor, shift)
        list(pool.read())
    return tally.histogram()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 7, 4097])
def test_counts_are_those_of_every_element(dtype: torch.dtype, size: int) -> None:
    whole = torch.int32 if dtype is torch.float32 else torch.int16
    limits = torch.iinfo(whole)
    torch.manual_seed(size)
    bits = torch.randint(limits.min, limits.max, (size,), dtype=whole).view(dtype)
    # Arithmetic makes quiet NaN only. Subnormals of float32 count as zeros on a device.
    bits = torch.where(bits.isnan(), torch.tensor(float("nan"), dtype=dtype), bits)
    bits = torch.where(bits.float().abs() < 2.0**-126, torch.zeros((), dtype=dtype), bits)
    expected = ExponentHistogram.of(bits.double().tolist())
    found = counted(bits)
    assert found.exponents == expected.exponents
    assert (found.zeros, found.nan, found.positive_inf, found.negative_inf) == (
        expected.zeros,
        expected.nan,
        expected.positive_inf,
        expected.negative_inf,
    )
    if not (found.nan or found.inf) and found.nonzero:
        assert (found.amax, found.high, found.low) == (expected.amax, expected.high, expected.low)
    if found.nonzero:
        assert found.amin <= expected.amin < 1.5 * found.amin


def test_a_chunk_that_is_no_multiple_of_the_lanes_and_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_doctor.probe.device_count._CHUNK", 13)
    values = torch.randn(100)
    assert counted(values).exponents == ExponentHistogram.of(values.tolist()).exponents


def test_scaled_gradients_are_filed_in_true_units() -> None:
    values = torch.tensor([2.0**-10, 3.0, 0.0])
    assert counted(values * 2**16, shift=16) == ExponentHistogram.of([2.0**-10, 3.0, 0.0])


def test_two_scales_in_one_step() -> None:
    pool = DevicePool(CPU)
    tally = pool.tally()
    tally.add(torch.tensor([4.0]), 2)
    tally.add(torch.tensor([8.0]), 3)
    list(pool.read())
    assert tally.histogram().exponents == {0: 2}


def test_extremes_behind_an_infinity_are_bounded_by_the_top_bin() -> None:
    found = counted(torch.tensor([5.0, -inf, 1.0]))
    assert (found.negative_inf, found.low, found.high) == (1, -8.0, 5.0)


def test_sites_that_met_nonfinite_values_come_in_the_order_they_were_touched() -> None:
    pool = DevicePool(CPU)
    tallies = [pool.tally() for _ in range(70)]
    for number in (69, 3, 5):
        tallies[number].add(torch.tensor([inf if number != 3 else 1.0, float("nan")][: 1 if number == 3 else 2]))
    assert [(tallies.index(tally), nan, positive) for tally, nan, positive, _ in pool.read()] == [(69, 1, 1), (5, 1, 1)]


def trained(on_host: bool, monkeypatch: pytest.MonkeyPatch) -> Profile:
    for module in ("sites", "operators"):
        monkeypatch.setattr(f"amp_doctor.probe.{module}.on_host", lambda _device: on_host)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        model[2].weight.view(-1)[0] = 3e38  # type: ignore[operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Probe(steps=4, mode="observe") as probe:
        for _ in range(9):
            x = torch.randn(5, 8)
            optimizer.zero_grad()
            ((model(x) @ torch.full((4, 1), 1e6)).square().mean() * 1e-9).backward()
            optimizer.step()
    return probe.profile


def test_a_run_counted_on_a_device_gives_the_profile_of_one_counted_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    host, device = trained(True, monkeypatch), trained(False, monkeypatch)
    assert device.steps == host.steps
    assert device.first_nonfinite == host.first_nonfinite
    assert [layer.name for layer in device.layers] == [layer.name for layer in host.layers]
    for there, here in zip(device.layers, host.layers, strict=True):
        for role, site in here.sites.items():
            assert there.sites[role].histogram.exponents == site.histogram.exponents, (here.name, role)
            assert there.sites[role].swallowed == site.swallowed
    assert [(one.operator, one.source) for one in device.operators] == [
        (one.operator, one.source) for one in host.operators
    ]
