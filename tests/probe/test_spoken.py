"""What a reader is told of an operator: its own name, and nothing that its numbers do not bear out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from amp_doctor.diagnosis.operators import ails
from amp_doctor.probe.examine import examine
from tests.probe.test_record import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Operator


class Amplify(torch.autograd.Function):
    """Its backward goes through numbers beyond FP16, and comes back."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * 1e12 * 1e-12


def worst(calculate: Callable[[Tensor], Tensor]) -> tuple[Operator, ...]:
    def step() -> None:
        torch.manual_seed(0)
        calculate(nn.Linear(8, 32)(torch.randn(16, 8))).backward()

    return tuple(one for one in examine(record(step), seconds=60).operators if one.precision.startswith("O1"))


def test_a_function_of_the_scripts_own_has_the_name_of_its_class() -> None:
    found = worst(lambda x: Amplify.apply(x).float().square().mean())  # type: ignore[no-untyped-call]
    assert [one.operator for one in found] == ["Amplify"]
    assert found[0].amax < 65504
    assert ails(found[0]) == (
        "the gradients that its backward computes become infinite in FP16, though they are not large in FP32"
    )


def test_a_bound_of_zero_is_no_eps_and_what_is_left_of_a_difference_does_not_underflow() -> None:
    """A few equal numbers among many are no loss; a difference of nothing but rounding is imprecise."""
    assert worst(lambda x: x.clamp(min=0).float().mean()) == ()
    assert worst(lambda x: (x - x.mean(1, keepdim=True)).float().square().mean()) == ()
    found = worst(lambda x: ((x + 60) * (x + 60) - (x + 60).square()).float().square().mean())
    assert not [one for one in found if one.trouble == "underflow"]


def test_a_script_in_bfloat16_hears_of_a_line_in_both_dtypes() -> None:
    def step() -> None:
        torch.manual_seed(0)
        x = nn.Linear(8, 32)(torch.randn(16, 8))
        ((x + 1000) - (0.5 * x + 1000)).float().square().mean().backward()

    recording = record(step)
    both = ["O1/bfloat16", "O1/float16"]
    assert {one.precision for one in examine(recording, seconds=60).operators if one.operator == "sub"} == {both[1]}
    found = examine(recording, seconds=60, bfloat16=True).operators
    assert [one.precision for one in found if one.operator == "sub" and one.precision[:2] == "O1"] == both
