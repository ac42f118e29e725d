"""Gradients that are clipped while they carry the loss scale: the line is seen, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.probe.running import probed, write

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
torch.manual_seed(0)
model = torch.nn.Linear(4, 1).cuda()
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
for _ in range(20):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(8, 4, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    {first}
    {second}
    scaler.step(optimizer)
    scaler.update()
"""
CLIP, UNSCALE = "clip_grad_norm_(model.parameters(), 1.0)", "scaler.unscale_(optimizer)"


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (CLIP, "pass", 11),
        (CLIP, UNSCALE, 11),
        ("pass", "clip_grad_value_(list(model.parameters()), clip_value=0.5)", 12),
        ("pass", "torch.nn.utils.clip_grad.clip_grad_norm_(model.weight, 1.0)", 12),
        (UNSCALE, CLIP, None),
        ("other = torch.nn.Linear(2, 2)", "clip_grad_norm_(other.parameters(), 1.0)", None),
        ("pass", "pass", None),
    ],
)
def test_the_line_that_clips_scaled_gradients(first: str, second: str, line: int | None, tmp_path: Path) -> None:
    code = SCRIPT.format(first=first, second=second)
    run = probed(tmp_path, "--fail-on", "never", "--steps", "8", write(tmp_path, code))
    assert run.profile is not None, run.err
    assert run.status == 0, run.err
    met = run.profile["places"].get("clipped")
    assert (met and met["line"]) == line


def test_while_calibrating_the_scale_is_1(tmp_path: Path) -> None:
    code = SCRIPT.format(first=CLIP, second="pass")
    run = probed(tmp_path, "--mode", "calibrate", "--fail-on", "never", "--steps", "8", write(tmp_path, code))
    assert run.profile is not None, run.err
    assert "clipped" not in run.profile["places"]


def test_an_empty_generator_is_still_warned_of(tmp_path: Path) -> None:
    code = SCRIPT.format(first="clip_grad_norm_((p for p in ()), 1.0)", second="pass")
    run = probed(tmp_path, "--fail-on", "never", "--steps", "8", write(tmp_path, code))
    assert "empty generator" in run.err
