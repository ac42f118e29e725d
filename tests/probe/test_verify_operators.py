"""A proof where the recommendation asks for a line to be changed, which no patch from outside can do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.probe.running import probed, write

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.out = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.relu(self.up(x)))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(8):
    x = torch.randn(32, 16)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PROBABILITIES = "F.binary_cross_entropy(torch.sigmoid(model(x)), (x.sum(1, keepdim=True) > 0).float())"
LOGITS = "F.binary_cross_entropy_with_logits(model(x), (x.sum(1, keepdim=True) > 0).float())"


def proof(where: Path, loss: str) -> tuple[dict[str, object], list[str]]:
    done = probed(where, "--steps", "6", "--verify", "--verify-steps", "6", "--format", "json",
                  write(where, SCRIPT.replace("{loss}", loss)))  # fmt: skip
    assert done.report is not None, done.err
    advice = json.loads(done.report)["recommendation"]
    return advice["verified"], [one["operator"] for one in advice["keep_fp32"]]


def test_a_line_that_is_to_be_changed_first_leaves_it_open(tmp_path: Path) -> None:
    found, kept = proof(tmp_path, PROBABILITIES)
    assert kept == ["binary_cross_entropy"]
    assert found["verdict"] == "inconclusive", found
    assert "to be changed first, which cannot be done from outside: binary_cross_entropy at" in str(found["reason"])


def test_once_it_is_changed_it_is_verified(tmp_path: Path) -> None:
    found, kept = proof(tmp_path, LOGITS)
    assert (found["verdict"], kept) == ("verified", []), found
