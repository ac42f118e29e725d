"""Without an option: on a machine without a GPU a script that sets up AMP for CUDA is emulated, and told so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from amp_doctor.probe import emulation
from amp_doctor.probe.settings import Settings
from tests.conftest import ROOT
from tests.probe.running import plain, probed, write

if TYPE_CHECKING:
    from pathlib import Path

# As most scripts are written: AMP where there is a GPU, and float32 elsewhere.
USUAL = """\
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
use_amp = device.type == "cuda"
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=use_amp)
for _ in range(100):
    x, y = torch.randn(16, 8, device=device), torch.randint(4, (16,), device=device)
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16, enabled=use_amp):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
STARTED = "--dry-run off runs it plainly"


def test_the_usual_script_is_emulated_after_calibration_and_told_why(tmp_path: Path) -> None:
    run = probed(tmp_path, "--steps", "10", write(tmp_path, USUAL))
    assert run.status == 0, run.err
    assert run.err == f"amp-doctor: {emulation.STARTED.format('train.py:9 makes a torch.amp.GradScaler')}\n"
    assert run.report is not None
    first = " ".join(run.report.partition("\n\n")[0].split())
    assert first.startswith("Emulated: the script ran on a CPU under the autocast rules of CUDA")
    assert "train.py:9 makes a torch.amp.GradScaler" in first
    assert first.endswith(STARTED + ".")
    assert run.profile is not None
    assert run.profile["device"]["emulated"] is True
    assert run.profile["device"]["why"] == "train.py:9 makes a torch.amp.GradScaler"
    assert run.profile["precision"] == {
        "autocast": ["float16"], "scaler": True, "weights": ["float32"], "calibrated": True
    }  # fmt: skip
    layer = next(one for one in run.profile["layers"] if one["name"] == "0")
    assert layer["sites"]["activation"]["dtype"] == "float32"
    assert layer["observed"]["activation"]["dtype"] == "float16"


def test_observing_is_what_the_script_does_on_cuda_too(tmp_path: Path) -> None:
    run = probed(tmp_path, "--mode", "observe", "--steps", "4", write(tmp_path, USUAL))
    assert run.profile is not None
    assert run.profile["device"]["emulated"] is True
    assert run.profile["layers"][0]["sites"]["activation"]["dtype"] == "float16"


@pytest.mark.parametrize("options", [("--dry-run", "off"), ("--mode", "calibrate")])
def test_turned_off_or_calibrating_it_runs_as_it_would_here(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = probed(tmp_path, *options, "--steps", "4", write(tmp_path, USUAL))
    assert (run.status, run.err) == (0, "")
    assert run.profile is not None
    assert run.profile["device"]["emulated"] is False
    assert run.profile["precision"]["autocast"] == []
    assert run.report is not None
    assert "mulated: " not in run.report


@pytest.mark.parametrize(
    "region", ["torch.autocast('cpu', dtype=torch.bfloat16)", "torch.autocast('cuda', enabled=False)"]
)
def test_autocast_of_the_cpu_or_none_is_left_as_it_is(tmp_path: Path, region: str) -> None:
    code = USUAL.replace("torch.autocast(device.type, dtype=torch.float16, enabled=use_amp)", region)
    code = code.replace("enabled=use_amp", "enabled=False")
    run = probed(tmp_path, "--steps", "4", write(tmp_path, code))
    assert (run.status, run.err) == (0, "")
    assert run.profile is not None
    assert run.profile["device"]["emulated"] is False


def test_a_script_that_insists_on_a_gpu_runs(tmp_path: Path) -> None:
    code = USUAL.replace("torch.manual_seed(0)", "assert torch.cuda.is_available(), 'this script needs a GPU'")
    run = probed(tmp_path, "--steps", "4", write(tmp_path, code))
    assert (run.status, run.steps) == (0, 4)


def test_amp_in_a_module_and_a_script_that_is_one(tmp_path: Path) -> None:
    write(tmp_path, "", "package/__init__.py")
    write(tmp_path, USUAL, "package/engine.py")
    write(tmp_path, "from package import engine\n", "package/train.py")
    run = probed(tmp_path, "--steps", "4", "-m", "package.train")
    assert (run.status, run.steps) == (0, 4)
    assert "engine.py:9 makes a torch.amp.GradScaler" in run.err


def test_a_failure_says_how_to_run_it_plainly(tmp_path: Path) -> None:
    # CUDA refuses this loss under autocast, the CPU does not.
    code = USUAL.replace(
        "nn.functional.cross_entropy(model(x), y)",
        "nn.functional.binary_cross_entropy(model(x).sigmoid(), torch.ones(16, 4, device=device))",
    )
    run = probed(tmp_path, "--mode", "observe", write(tmp_path, code))
    assert run.status == 1
    assert "unsafe to autocast" in run.err
    assert run.err.endswith(f"amp-doctor: {emulation.AS_ON_A_GPU}\n")
    assert emulation.AS_ON_A_GPU in run.notes
    assert probed(tmp_path, "--dry-run", "off", "--fail-on", "never", "--steps", "4", "train.py").status == 0
    # It was asked for: nothing is to be said.
    asked = probed(tmp_path, "--dry-run", "cuda", "--mode", "observe", "train.py")
    assert "amp-doctor:" not in asked.err
    assert emulation.AS_ON_A_GPU not in asked.notes
    # Of any other error nobody knows whose it is.
    other = USUAL.replace("torch.manual_seed(0)", "raise RuntimeError('gone')")
    run = probed(tmp_path, write(tmp_path, other, "other.py"))
    assert run.err.endswith(f"amp-doctor: {emulation.FAILED}\n")
    assert emulation.FAILED in run.notes


@pytest.mark.parametrize("line", ["import gone", "open('gone')", "raise SystemExit(2)"])
def test_a_failure_that_has_nothing_to_do_with_it_is_not_blamed_on_it(tmp_path: Path, line: str) -> None:
    run = probed(tmp_path, write(tmp_path, USUAL.replace("torch.manual_seed(0)", line)))
    assert run.status != 0
    assert emulation.FAILED not in run.err + run.notes


def test_ranks_on_cpus_are_emulated_and_say_so_once(tmp_path: Path) -> None:
    script, profile = str(ROOT / "fixtures" / "clients" / "cuda_ddp.py"), tmp_path / "profile.json"
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "amp_doctor", "probe"]
    run = plain(tmp_path, *words, "--steps", "6", "--profile", str(profile), script)
    assert run.status == 0, run.err
    assert run.err.count(STARTED) == 1
    assert run.out.lstrip().startswith("Emulated:")
    found = json.loads(profile.read_text())
    assert (found["ranks"], found["steps"]["attempted"], found["device"]["emulated"]) == (2, 6, True)


def test_spawned_trainers_are_emulated(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in USUAL.splitlines()[3:])
    code = (
        "import torch\nimport torch.multiprocessing as mp\nfrom torch import nn\n\n\ndef work(rank):\n" + body + "\n\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=1)\n"
    )
    run = probed(tmp_path, "--steps", "4", write(tmp_path, code))
    assert (run.status, run.steps) == (0, 4)
    assert run.err.count(STARTED) == 1
    assert run.profile is not None
    assert run.profile["device"]["emulated"] is True
    assert run.profile["precision"]["autocast"] == ["float16"]


def test_a_proof_is_emulated_as_the_run_was(tmp_path: Path) -> None:
    run = probed(tmp_path, "--verify", "--steps", "6", write(tmp_path, USUAL))
    assert run.status == 0, run.err
    assert run.report is not None
    assert "as written (float16, a GradScaler), emulated" in run.report
    assert run.err.count(STARTED) == 1


def test_a_machine_with_a_gpu_emulates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Settings(cuda_amp="train.py:1 enters torch.autocast")
    assert emulation.settled(asked).dry_run
    assert emulation.settled(Settings()) == Settings()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert emulation.settled(asked) is asked
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    assert emulation.settled(asked) is asked
