"""The backward of each operator is compared with FP32's: which one loses or overflows a gradient, and at what scale."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

from amp_doctor.probe.backward_troubles import backward_troubles
from amp_doctor.probe.examine import examine
from amp_doctor.probe.keeping import scaled
from amp_doctor.probe.precisions import O1_BF16, O1_FP16
from amp_doctor.probe.replay import replay
from tests.probe import backward_illnesses
from tests.probe.backward_illnesses import ILLNESSES
from tests.probe.recorded_zoo_more import ZOO
from tests.probe.test_record import prepared, record

LINES = Path(backward_illnesses.__file__).read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", ILLNESSES)
def test_the_operator_is_named_with_its_line_and_phase(name: str) -> None:
    trouble, operator, step = ILLNESSES[name]
    found = [one for one in examine(record(step), seconds=60).operators if one.phase == "backward"]
    assert (found[0].operator, found[0].trouble) == (operator, trouble)
    assert found[0].source is not None
    assert LINES[found[0].source.line - 1].endswith("# ILL")


@pytest.mark.parametrize("name", ZOO)
def test_a_healthy_step_names_no_operator_under_any_precision(name: str) -> None:
    _, step = prepared(name)
    examined = examine(record(step), seconds=60)
    assert examined.operators == ()
    assert examined.exact
    assert examined.kept == ()
    assert [one.precision for one in examined.outcomes] == ["O1/float16", "O1/bfloat16", "O2/float16", "O3/float16"]
    for one in examined.outcomes:
        assert one.overflows == 0
        assert one.gradient_error is not None
        assert max(one.loss_error, one.gradient_error) < 0.1


def products() -> None:
    """One weight in two calls, one of them twice as steep."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False)
    x = torch.randn(8, 4)
    (layer(x).sum() + 2 * layer(x).sum()).backward()


def test_gradients_of_a_call_are_its_own_although_autocast_shares_the_cast_of_its_weight() -> None:
    first, second = (one for one in replay(record(products), O1_FP16).nodes if one.node.name.startswith("linear"))
    assert first.flow is not None
    assert second.flow is not None
    assert [one.amax for one in first.flow.given] == [1.0]
    assert [one.amax for one in second.flow.given] == [2.0]
    assert second.flow.made[0].amax == 2 * first.flow.made[0].amax
    assert max(one.error for one in (*first.flow.made, *second.flow.made)) < 1e-3


def test_gradients_are_in_true_units_whatever_the_scale() -> None:
    recording = record(products)
    plain, large = (replay(recording, O1_FP16, scale=scale).nodes for scale in (1.0, 4096.0))
    for a, b in zip(plain, large, strict=True):
        if a.flow is not None and b.flow is not None:
            assert [one.amax for one in a.flow.given] == [one.amax for one in b.flow.given]


def steep(factor: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    (layer(torch.randn(8, 4)).float() * factor).sum().backward()


@pytest.mark.parametrize(("factor", "scale"), [(0.5, 65536.0), (16.0, 2048.0), (2.0**15, 1.0)])
def test_the_scale_is_the_largest_under_which_no_gradient_overflows(factor: float, scale: float) -> None:
    replayed = scaled(record(lambda: steep(factor)), O1_FP16, time.monotonic() + 60)
    assert replayed.scale <= scale
    assert replayed.scale * 16 >= scale
    assert backward_troubles(replayed) == ()
    assert replayed.gradient_error < 1e-2


def test_bfloat16_needs_no_scale() -> None:
    assert scaled(record(lambda: steep(2.0**15)), O1_BF16, time.monotonic() + 60).scale == 1.0


def test_what_the_forward_pass_has_lost_is_not_told_of_the_backward_pass_as_well() -> None:
    def step() -> None:
        torch.manual_seed(0)
        tiny = nn.Linear(8, 8)(torch.randn(8, 8)) * 1e-9
        F.softmax(tiny * 1e9, -1).square().sum().backward()

    assert [one.phase for one in examine(record(step), seconds=60).operators if one.precision == "O1/float16"] == [
        "forward"
    ]
