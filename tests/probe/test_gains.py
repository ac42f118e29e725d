"""Shares of FLOPs and ranges of speed-ups, on steps for which they can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from amp_doctor.probe.gains import GPUS, Gains, gains, misaligned
from amp_doctor.probe.precisions import O1_FP16, O3_FP16, Precision
from amp_doctor.probe.replay import replay
from tests.probe.test_record import record

if TYPE_CHECKING:
    from amp_doctor.probe.replayed import Replayed


def replayed(width: int, precision: Precision) -> Replayed:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False))

    def step() -> None:
        model(torch.randn(width, width)).square().mean().backward()

    return replay(record(step), precision)


def gained(width: int, precision: Precision = O1_FP16) -> Gains:
    return gains(replayed(width, precision))


def test_all_products_of_a_perceptron_go_to_tensor_cores() -> None:
    found = gained(64)
    assert found.flops == 2 * 2 * 64**3
    assert found.tensor_cores == 1.0
    assert found.aligned == 1.0
    # The input, two weights, and the square, which autocast computes in FP32.
    assert found.casts == 4


def test_dimensions_off_the_multiples_of_8_are_named() -> None:
    products = [one for one in replayed(36, O1_FP16).nodes if one.flops]
    assert [misaligned(one) for one in products] == [(36,), (36,)]
    assert gained(36).aligned == 0.0


def test_a_speed_up_is_a_range_and_small_layers_gain_nothing() -> None:
    small, large = gained(32), gained(768)
    for gpu in GPUS:
        low, high = large.speed[gpu.name]
        assert low < high
        assert 1 < high < gpu.half / gpu.fp32
        assert small.speed[gpu.name][0] < 1


def test_activations_are_half_as_large_in_half() -> None:
    found = gained(64, O3_FP16)
    # The input is made in FP32 within the step, and cast.
    assert found.activations * 2 == found.activations_fp32
