"""The loop that the small models share, and the tables they enter themselves in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Trained = Callable[[], None]
    Calculate = Callable[[Tensor], Tensor]

Batch = tuple[Tensor, Tensor]

ILL: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {}
HEALTHY: dict[str, Callable[[], None]] = {}


def ill(*expected: str) -> Callable[[Trained], Trained]:
    """Trains a model that gets exactly these findings, `AMP602 embed`; a layer of `*` is any, `-` none."""

    def enter(trained: Trained) -> Trained:
        ILL[trained.__name__] = (trained, expected)
        return trained

    return enter


def healthy(trained: Trained) -> Trained:
    """Trains a model that gets none."""
    HEALTHY[trained.__name__] = trained
    return trained


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[], Batch],
    loss: Callable[..., Tensor],
    steps: int = 25,
) -> None:
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


def step_of(calculate: Calculate) -> Trained:
    """The forward and backward pass of a linear layer whose output, 16 by 32, `calculate` turns into a loss."""

    def step() -> None:
        torch.manual_seed(0)
        layer = nn.Linear(8, 32)
        calculate(layer(torch.randn(16, 8))).backward()

    return step


def classes() -> Batch:
    """32 points in 16 dimensions, in 4 classes that can be told apart."""
    x = torch.randn(32, 16)
    return x, x[:, :4].argmax(1)
