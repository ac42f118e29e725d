"""A script that dies of an operator that CUDA's autocast refuses: the operator, its line and its layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from amp_doctor.probe import emulation
from amp_doctor.probe.names import Names
from amp_doctor.probe.recording import WIDENED
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


MASKED = """\
import torch
torch.manual_seed(0)
BIG = -1e9
model = torch.nn.Linear(4, 4).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
for _ in range(20):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        scores = model(torch.randn(8, 4, device="cuda"))
        {line}
        loss = scores.softmax(-1).square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("line", "operator", "amount"),
    [
        ("scores.masked_fill_(scores < -3.0, -1e9)", "masked_fill_", 1e9),
        ("scores = scores.masked_fill(scores < -3.0, value=BIG)", "masked_fill", 1e9),
        ("scores = scores.masked_fill(scores < -3.0, torch.finfo(torch.float32).min)", "masked_fill", 0.0),
    ],
)
def test_a_constant_that_half_cannot_hold(line: str, operator: str, amount: float, tmp_path: Path) -> None:
    run = probed(tmp_path, "--steps", "20", write(tmp_path, MASKED.format(line=line)))
    assert run.profile is not None, run.err
    [met] = [one for one in run.profile["operators"] if one["precision"] == ""]
    told = (met["operator"], met["trouble"], met["dtype"], met["amax"], met["source"]["line"])
    assert told == (operator, "unsupported", "float16", amount, 10)
    assert "error AMP617" in (run.report or run.out)
    assert emulation.FAILED not in run.notes


def test_what_only_a_cpu_cannot_compute_is_no_refusal() -> None:
    """A GPU computes with such a constant in FP32."""
    error = RuntimeError("value cannot be converted to type c10::Half without overflow")
    with pytest.raises(RuntimeError) as met:
        raise error
    assert refusal(met.value, Names()) is None


def test_out_of_order_with_the_scaler(tmp_path: Path) -> None:
    code = MASKED.format(line="pass").replace("    scaler.update()\n", "")
    run = probed(tmp_path, "--steps", "20", write(tmp_path, code))
    assert run.profile is not None, run.err
    assert "step() has already been called since the last update()" in run.notes
    assert run.profile["places"]["raised"]["line"] == 13
    assert emulation.AS_ON_A_GPU in run.notes
    assert WIDENED not in run.notes
    assert run.err.endswith(f"amp-doctor: {emulation.AS_ON_A_GPU}\n")
