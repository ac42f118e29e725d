"""Sums over very many elements in half are a trouble of their own: they overflow, or stop growing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from amp_doctor.probe.examine import examine
from tests.probe.test_record import record

if TYPE_CHECKING:
    from collections.abc import Callable


def whole_image(x: Tensor) -> Tensor:
    image = x.sigmoid().repeat(32, 16).half()
    return image.sum().float() / image.numel()


def positions(x: Tensor) -> Tensor:
    counted = torch.ones(6000, dtype=torch.float16).cumsum(0)
    return (x.flatten().repeat(12)[:6000] * (counted.float() / 100).sin()).square().mean()


def norm_of_many(x: Tensor) -> Tensor:
    return (x.repeat(32, 16) * 700).norm() / 1e5


def messages_into_two_nodes(x: Tensor) -> Tensor:
    rows = x.abs().repeat(2000, 1)
    total = torch.zeros(2, 32, dtype=rows.dtype).index_add(0, torch.arange(32000) % 2, rows)
    return (total / 16000).square().mean()


def sum_of_squares(x: Tensor) -> Tensor:
    error = x.repeat(64, 1) * 4 - 3
    return (error * error).sum() / 1e4


def hits_that_no_loss_depends_on(x: Tensor) -> Tensor:
    (x.repeat(256, 1) < 100).half().sum()
    return x.float().square().mean()


def total_that_is_kept(x: Tensor) -> Tensor:
    total = torch.zeros(32, dtype=torch.float16) + 300
    for row in x.repeat(4, 1):
        total = total + row.detach().abs().half() * 0.1
    return (total.float() / 640 * x).square().mean()


ILL: dict[Callable[[Tensor], Tensor], tuple[str, str]] = {
    whole_image: ("O0/float16", "sum"),
    positions: ("O0/float16", "cumsum"),
    norm_of_many: ("O2/float16", "norm"),
    messages_into_two_nodes: ("O1/float16", "index_add"),
    sum_of_squares: ("O2/float16", "sum"),
    hits_that_no_loss_depends_on: ("O0/float16", "sum"),
    total_that_is_kept: ("O1/float16", "add"),
}


def few(x: Tensor) -> Tensor:
    return x.half().sum().float() + x.half().cumsum(0).float().mean() + x.half().norm().float()


def probabilities(x: Tensor) -> Tensor:
    """Sorted and added up, as top-p sampling does: the tail changes nothing, and need not."""
    sorted_down = (x.flatten() * 20).softmax(0).half().sort(descending=True).values
    return (sorted_down.cumsum(0).float() * x.flatten()).mean()


def messages_between_neighbours(x: Tensor) -> Tensor:
    rows = x.repeat(8, 1)
    return torch.zeros(16, 32, dtype=rows.dtype).index_add(0, torch.arange(128) % 16, rows).square().mean()


def mean_of_an_image(x: Tensor) -> Tensor:
    return x.sigmoid().repeat(32, 16).half().mean().float()


def step(calculate: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    def trained() -> None:
        torch.manual_seed(0)
        calculate(nn.Linear(8, 32)(torch.randn(16, 8))).backward()

    return trained


@pytest.mark.parametrize("calculate", ILL, ids=lambda one: one.__name__)
def test_a_sum_that_fails_is_named(calculate: Callable[[Tensor], Tensor]) -> None:
    precision, operator = ILL[calculate]
    found = examine(record(step(calculate)), seconds=60).operators
    assert (found[0].precision, found[0].operator, found[0].trouble) == (precision, operator, "accumulation")
    assert found[0].source is not None
    assert found[0].source.path == __file__


@pytest.mark.parametrize(
    "calculate", [few, probabilities, messages_between_neighbours, mean_of_an_image], ids=lambda one: one.__name__
)
def test_a_sum_that_holds_is_not(calculate: Callable[[Tensor], Tensor]) -> None:
    assert [one for one in examine(record(step(calculate)), seconds=60).operators if one.precision[:2] != "O2"] == []


def test_elements_that_are_too_large_themselves_are_an_overflow_and_no_accumulation() -> None:
    found = examine(record(step(lambda x: (600 * x).square().mean())), seconds=60).operators
    assert [one.trouble for one in found if one.operator == "square"] == ["overflow"]
