"""A script that dies of an operator that CUDA's autocast refuses: the operator, its line and its layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from amp_doctor.probe.names import Names
from amp_doctor.probe.refusals import refusal
from tests.probe.running import probed, write

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import torch
torch.manual_seed(0)
model, criterion = torch.nn.Linear(4, 1).cuda(), torch.nn.BCELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    with torch.autocast("cuda"):
        chances = model(torch.randn(8, 4, device="cuda")).sigmoid()
        loss = {call}(chances, torch.ones_like(chances))
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "layer"), [("criterion", "BCELoss"), ("torch.nn.functional.binary_cross_entropy", "")]
)
def test_the_run_is_told_as_an_error_at_the_line_that_raised(call: str, layer: str, tmp_path: Path) -> None:
    run = probed(tmp_path, "--dry-run", "cuda", "--steps", "20", write(tmp_path, SCRIPT.format(call=call)))
    assert run.profile is not None, run.err
    [banned] = [one for one in run.profile["operators"] if one["trouble"] == "banned"]
    told = (banned["operator"], banned["layer"], banned["source"]["line"], banned["precision"])
    assert told == ("binary_cross_entropy", layer, 8, "")
    assert "error AMP617" in (run.report or run.out)


def test_other_errors_are_no_refusals() -> None:
    for error in (RuntimeError("binary_cross_entropy: out of range"), ValueError("autocast of binary_cross_entropy")):
        assert refusal(error, Names()) is None
    with pytest.raises(RuntimeError) as met:
        torch.nn.functional.binary_cross_entropy(torch.tensor([2.0]), torch.tensor([1.0]))
    assert refusal(met.value, Names()) is None
