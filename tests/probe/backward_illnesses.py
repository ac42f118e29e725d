"""Operators whose forward FP16 stands and whose backward it does not, each on a line that ends with `# ILL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tests.probe.small_training import step_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.probe.small_training import Calculate

# Name -> trouble, operator, and the step.
ILLNESSES: dict[str, tuple[str, str, Callable[[], None]]] = {}


def enter(trouble: str, operator: str) -> Callable[[Calculate], Calculate]:
    """The calculation makes one step, as small_training.step_of says."""

    def register(calculate: Calculate) -> Calculate:
        ILLNESSES[calculate.__name__] = trouble, operator, step_of(calculate)
        return calculate

    return register


@enter("overflow", "div")
def division_by_small_numbers(x: Tensor) -> Tensor:
    small = x.abs() * 1e-4 + 3e-5
    ratio = (x * 1e-4) / small  # ILL
    return ratio.float().square().mean() * 1e5


@enter("underflow", "tanh")
def saturated_tanh(x: Tensor) -> Tensor:
    return torch.tanh(x + 8).float().square().mean()  # ILL


@enter("underflow", "sigmoid")
def saturated_sigmoid(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x + 13)  # ILL
    return gate.float().mean()


@enter("underflow", "float")
def losses_far_apart(x: Tensor) -> Tensor:
    """The loud one allows no loss scale that the quiet one needs."""
    loud, quiet = (2 * x).tanh(), (3 * x).tanh()
    quiet = quiet.float()  # ILL
    return loud.float().mean() * 1e6 + quiet.mean() * 1e-10


@enter("overflow", "sqrt")
def root_of_almost_nothing(x: Tensor) -> Tensor:
    """FP16 rounds to zero only the few that are least; the slope of a root there is infinite."""
    distance = x.square() * 1e-3
    return distance.half().sqrt().float().mean()  # ILL
