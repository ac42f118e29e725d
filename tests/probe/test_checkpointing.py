"""Activation checkpointing: the recomputation is left alone, and is not counted twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from amp_doctor.probe import Probe

STEPS, BATCH, WIDTH = 4, 5, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, WIDTH)
        self.fc2 = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(torch.relu_(self.fc1(x)))


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.kind == "none" else checkpoint(block, x, use_reentrant=self.kind == "reentrant")
        return x


def train(net: nn.Module, whole: bool) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(1)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        output = checkpoint(net, x, use_reentrant=False) if whole else net(x)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("whole", [False, True], ids=["blocks", "whole"])
@pytest.mark.parametrize("kind", ["none", "reentrant", "non-reentrant"])
def test_each_output_is_counted_once(kind: str, whole: bool) -> None:
    torch.manual_seed(0)
    plain, probed = Net(kind), Net(kind)
    probed.load_state_dict(plain.state_dict())
    wanted = train(plain, whole)
    with Probe(steps=STEPS + 1) as probe:
        losses = train(probed, whole)
    assert losses == wanted
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), probed.parameters(), strict=True))
    profile = probe.profile
    assert (profile.steps.taken, profile.ended) == (STEPS, "finished")
    assert not profile.notes
    assert len(profile.loss) == STEPS
    sites = {layer.name: layer.sites for layer in profile.layers}
    for name in ("stem", "blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc1", "blocks.1.fc2"):
        for role in ("activation", "activation_grad"):
            assert sites[name][role].histogram.elements == STEPS * BATCH * WIDTH, (name, role)


def test_memory_is_not_measured_under_a_checkpoint_of_the_whole_model() -> None:
    """Its hooks are the only ones called: ours would keep it from seeing what it saves."""
    with Probe(steps=STEPS) as probe:
        train(Net("none"), whole=True)
    assert probe.profile.memory.saved_bytes is None
    with Probe(steps=STEPS) as probe:
        train(Net("none"), whole=False)
    assert probe.profile.memory.saved_bytes
