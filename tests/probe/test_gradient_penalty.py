"""A gradient penalty under a scaler: what comes of scaled gradients ends when the scaler has found its scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from amp_doctor.probe import Probe

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import FirstNonfinite


class Penalty(nn.Module):
    """The slopes as half autocast leaves them: infinite under a large scale."""

    def forward(self, slopes: torch.Tensor, extra: float) -> torch.Tensor:
        return slopes.half().float().norm(2, 1).mean() + extra


def train(scale: float, *, in_layer: bool, extra: float = 0.0) -> FirstNonfinite | None:
    """What is met when the scaler starts at `scale`; `extra` is added to every loss."""
    torch.manual_seed(0)
    critic, penalty = nn.Linear(2, 1), Penalty()
    optimizer = torch.optim.SGD(critic.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with Probe(steps=8, mode="observe") as probe:
        for _ in range(8):
            x = torch.randn(8, 2, requires_grad=True)
            out = critic(x)
            slopes = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)[0]
            judge = penalty if in_layer else penalty.forward
            loss = out.mean() + judge(slopes, extra) / scaler.get_scale()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert probe.profile is not None
    return probe.profile.first_nonfinite


@pytest.mark.parametrize("in_layer", [True, False])
def test_a_penalty_that_is_infinite_until_the_scale_has_come_down_is_expected(in_layer: bool) -> None:
    assert train(2.0**19, in_layer=in_layer) is None


def test_one_that_stays_infinite_is_told_with_the_step_in_which_it_began() -> None:
    met = train(2.0**19, in_layer=False, extra=float("inf"))
    assert met is not None
    assert (met.step, met.phase, met.value) == (1, "loss", "inf")
    assert train(2.0**60, in_layer=False) is not None  # eight steps do not bring it down
