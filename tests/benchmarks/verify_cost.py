"""`make bench-verify`: what the runs of a proof cost, against a plain run of the same script for the same steps.

Processor seconds of all processes, start-up included, one thread each; `--check` exits 1 when the bar is missed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch._dynamo  # noqa: F401 - loaded with the first optimizer, so by the probe of the script before its proof

from amp_doctor.diagnosis.profile import Device, Precision, Profile, Steps
from amp_doctor.diagnosis.recommendation import LossScale, Recommendation
from amp_doctor.probe.verify import Command, verify
from tests.benchmarks.bars import Bar, parser, status
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, STEPS = 3, 20
LIMIT = 3.5

# One that is all start-up, one that computes for a while, and one that does hardly anything else.
_SCRIPT = """\
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(0)
size, amp = sys.argv[1], sys.argv[2] == "amp"
if size == "small":
    model, shape = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)), (32, 16)
else:
    parts = [torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.ReLU()]
    model = torch.nn.Sequential(*parts, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
    shape = (32, 3, 32, 32) if size == "convolutions" else (64, 3, 64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cuda", enabled=amp)
for _ in range(int(sys.argv[3])):
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a line per script; 1 when `--check` is given and a bar is missed."""
    chosen = parser(__doc__, ROUNDS).parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = str(ROOT)
    bars = []
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "train.py").write_text(_SCRIPT)
        for size in ("small", "convolutions", "large"):
            for amp in ("float32", "amp"):
                ratios = [_ratio(place, size, amp) for _ in range(chosen.rounds)]
                bars.append(Bar(f"{size}, written in {amp}: proof / plain run", median(ratios), LIMIT))
                print(bars[-1], flush=True)
    return status(bars, check=chosen.check)


def _ratio(place: str, size: str, amp: str) -> float:
    words = ("train.py", size, amp, str(STEPS))
    # Without a GPU a scaler for CUDA says that it is disabled, and does nothing.
    plain = _seconds(
        lambda: subprocess.run(
            [sys.executable, "-W", "ignore", "train.py", size, "float32", str(STEPS)], cwd=place, check=True
        )
    )
    use = Precision(("float16",), True) if amp == "amp" else Precision()
    profile = Profile(device=Device("cpu"), steps=Steps(STEPS, STEPS, STEPS), precision=use)
    advice = Recommendation("float16", "O1", LossScale(True, 1024.0, (1.0, 2048.0)))
    command = Command(words, place, dict(os.environ), (), amp == "amp")
    return _seconds(lambda: verify(profile, advice, command)) / plain


def _seconds(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
