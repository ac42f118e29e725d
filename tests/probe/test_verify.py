"""`--verify`: real scripts are run again under other precisions, and the recommendation is verified or not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.profile import Device, Operator, Precision, Profile, Replay, Source, Steps
from amp_doctor.diagnosis.recommendation import KeepFP32, LossScale, Recommendation
from amp_doctor.probe.fresh import Fresh
from amp_doctor.probe.rerun import Command, Rerun, environment_of, rerun
from amp_doctor.probe.trial import Trial
from amp_doctor.probe.verify import verify
from tests.probe.running import environment, plain, probed, write

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 10

HEALTHY = """\
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(0)
teacher = torch.randn(16, 4)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(30):
    x = torch.randn(32, 16)
    y = (x @ teacher).argmax(1)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("the script speaks", file=sys.stderr)
"""

# The output of `wide` is beyond float16; what `out` makes of it is not. Only `out` learns.
OVERFLOWING = """\
import torch

torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(16, 16)
        self.out = torch.nn.Linear(16, 1)
        with torch.no_grad():
            self.wide.weight.mul_(1e6)
            self.out.weight.mul_(1e-6)

    def forward(self, x):
        return self.out(self.wide(x).relu())


model = Net()
model.wide.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-14)
for _ in range(30):
    x = torch.randn(32, 16)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""

# Gradients around 2^-40: at a loss scale of 1 none of them reaches float16.
TINY = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-30)
for _ in range(30):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    (2.0**-40 * (model(x) - x.sum(1, keepdim=True)).pow(2).mean()).backward()
    optimizer.step()
"""

# Every run is another one, in an order that the test can rely on.
RESTLESS = """\
from pathlib import Path

import torch

runs = Path(__file__).with_name("runs")
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
torch.manual_seed(len(runs.read_text()))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    x = torch.randn(2, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()
"""

# Under autocast CUDA refuses this loss of a sigmoid.
REFUSED = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Sigmoid())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    torch.nn.functional.binary_cross_entropy(model(x), (x[:, :1] > 0).float()).backward()
    optimizer.step()
"""

# Whatever the seed, the model is always the same: it is the one that was set before the script.
UNSEEDED = """\
import random

import numpy
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    (model(torch.randn(2, 4)).sum() * random.random() * numpy.random.rand()).backward()
    optimizer.step()
"""

SCALED = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
for _ in range(30):
    x = torch.randn(16, 8, device="cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


# A scaler that starts beyond all gradients and doubles at every chance.
GROWING = SCALED.replace('GradScaler("cuda")', 'GradScaler("cuda", init_scale=2.0**40, growth_interval=1)')

# Beyond any learning rate that would converge: rounding sends the losses elsewhere, in FP32 as well.
RESTLESS_LOSSES = """\
import torch

torch.manual_seed(0)
sizes = (16, 64, 64, 4)
layers = [one for a, b in zip(sizes, sizes[1:]) for one in (torch.nn.Linear(a, b), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers[:-1])
optimizer = torch.optim.SGD(model.parameters(), lr=2.5, momentum=0.9)
teacher = torch.randn(16, 4)
for _ in range(40):
    x = torch.randn(64, 16)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


def advice(dtype: str, init_scale: float | None = 1024.0, keep: tuple[str, ...] = ()) -> Recommendation:
    scale = LossScale(True, init_scale, (1.0, 2.0**20))
    return Recommendation(dtype, "O1", scale, tuple(KeepFP32(name, "planted") for name in keep))


def proven(where: Path, code: str, recommendation: Recommendation, **precision: object) -> Recommendation:
    """The recommendation for a script, as if a probe on a CPU had made it."""
    use = Precision(**precision)  # type: ignore[arg-type]
    profile = Profile(device=Device("cpu"), steps=Steps(STEPS, STEPS, STEPS), precision=use)
    dry_run = "cuda" in code
    command = Command((write(where, code),), str(where), environment(), (), dry_run)
    found = verify(profile, recommendation, command)
    assert found.verified is not None
    return found


def run_trial(command: Command, trial: Trial, steps: int, dry_run: bool = False) -> Rerun:
    """One run, in a process of its own."""
    with Fresh(environment_of(command.environment), command.directory) as fresh:
        return rerun(fresh, command, trial, steps, dry_run=dry_run, seconds=10.0)


def verdict(recommendation: Recommendation) -> str:
    assert recommendation.verified is not None
    return recommendation.verified.verdict


def test_a_healthy_model_is_verified_and_what_its_script_says_is_heard_once(tmp_path: Path) -> None:
    name = write(tmp_path, HEALTHY)
    steps = ["--steps", "12", "--verify", "--verify-steps", "8"]
    done = probed(tmp_path, *steps, "--format", "json", name)
    assert done.report is not None, done.err
    proof = json.loads(done.report)["recommendation"]["verified"]
    assert (proof["verdict"], proof["steps"], proof["instead"]) == ("verified", 8, "")
    full, written, tried = proof["runs"]
    assert written["loss"] == full["loss"]
    assert len(tried["loss"]) == 8
    assert (tried["skipped"], tried["lost"]) == (0, 0)
    assert tried["loss"] != full["loss"]  # it was rounded
    assert tried["settings"].endswith("emulated")
    assert (
        done.out.count("the script speaks") + done.err.count("the script speaks") == 11
    )  # stopped in its twelfth step
    assert done.profile is not None
    assert done.profile["steps"]["attempted"] == 12
    assert done.profile["recommendation"] == json.loads(done.report)["recommendation"]  # `report` tells it again


def test_the_report_for_people_has_a_table(tmp_path: Path) -> None:
    done = probed(tmp_path, "--steps", "6", "--verify", write(tmp_path, HEALTHY))
    assert done.status == 0, done.err
    assert done.report is not None
    proof = done.report.partition("\nProof\n")[2].partition("\n\n")[0]
    assert "Verified by a run of 6 steps." in proof
    assert "as written (float32 too, the same run)" in proof
    assert "loss at the end" in proof


@pytest.mark.parametrize("keep", [("wide", "out"), ("Net.wide", "Net.out")])
def test_layers_kept_in_float32_do_not_overflow(tmp_path: Path, keep: tuple[str, ...]) -> None:
    found = proven(tmp_path, OVERFLOWING, advice("float16", 1.0, keep))
    assert verdict(found) == "verified", found.verified


def test_overflow_is_refuted_and_revised_to_bfloat16(tmp_path: Path) -> None:
    found = proven(tmp_path, OVERFLOWING, advice("float16", 1.0))
    assert found.verified is not None
    assert (found.verified.verdict, found.verified.instead, found.dtype) == ("refuted", "bfloat16", "bfloat16")
    assert "bfloat16" in found.snippet
    assert "float16 was refuted" in found.reasons[0]
    assert "bfloat16, tried instead, is verified" in found.verified.reason


def test_lost_gradients_refute_a_loss_scale_that_is_too_small(tmp_path: Path) -> None:
    right = proven(tmp_path, TINY, advice("float16", 2.0**36))
    assert right.verified is not None
    assert right.verified.verdict == "verified", right.verified
    assert right.verified.runs[2].lost is not None
    assert right.verified.runs[2].lost < 0.05
    wrong = proven(tmp_path, TINY, advice("float16", 1.0))
    assert wrong.verified is not None
    assert wrong.verified.verdict == "refuted"
    assert wrong.verified.runs[2].lost == 1.0


def test_a_loss_scale_that_is_too_large_skips_steps(tmp_path: Path) -> None:
    found = proven(tmp_path, HEALTHY, advice("float16", 2.0**60))
    assert found.verified is not None
    assert found.verified.verdict == "refuted"
    assert found.verified.runs[2].skipped == STEPS
    assert "10 of 10 steps" in found.verified.reason


def test_a_script_that_does_not_repeat_itself_is_inconclusive(tmp_path: Path) -> None:
    found = proven(tmp_path, RESTLESS, advice("float16"))
    assert found.verified is not None
    assert found.verified.verdict == "inconclusive"
    assert "does not repeat itself" in found.verified.reason
    assert found.dtype == "float16"


def test_training_that_any_rounding_sends_elsewhere_is_inconclusive(tmp_path: Path) -> None:
    command = Command((write(tmp_path, RESTLESS_LOSSES),), str(tmp_path), environment())
    profile = Profile(device=Device("cpu"), steps=Steps(40, 40, 40))
    found = verify(profile, advice("float16"), command)
    assert found.verified is not None
    assert found.verified.verdict == "inconclusive"
    assert "any rounding drives these losses apart" in found.verified.reason
    assert [run.settings for run in found.verified.runs][-2:] == [
        "float32, once more",
        "float32, from weights changed in their fourth digit",
    ]
    assert found.dtype == "float16"


def test_a_scaler_is_tried_as_the_code_to_paste_makes_it(tmp_path: Path) -> None:
    found = proven(tmp_path, GROWING, advice("float16", 1024.0), autocast=("float16",), scaler=True)
    assert found.verified is not None
    assert found.verified.verdict == "verified", found.verified
    assert [run.skipped for run in found.verified.runs] == [0, STEPS, 0]


def test_what_is_written_as_recommended_is_not_run_twice(tmp_path: Path) -> None:
    code = SCALED.replace('GradScaler("cuda")', 'GradScaler("cuda", init_scale=1024.0)')
    found = proven(tmp_path, code, advice("float16", 1024.0), autocast=("float16",), scaler=True)
    assert found.verified is not None
    _, written, tried = found.verified.runs
    assert written == replace(tried, settings=written.settings)
    assert tried.settings == "as recommended (float16, init_scale 1024, as it is written: the same run)"
    assert found.verified.verdict == "verified"


def test_by_default_the_proof_is_emulated_as_the_probe_was(tmp_path: Path) -> None:
    done = probed(tmp_path, "--steps", "10", "--verify", "--format", "json", write(tmp_path, SCALED))
    assert done.status in (0, 1), done.err
    assert done.profile is not None
    assert done.profile["device"]["emulated"]
    assert done.report is not None
    proof = json.loads(done.report)["recommendation"]["verified"]
    assert proof["verdict"] == "verified", proof
    assert [run["failure"] for run in proof["runs"]] == ["", "", ""]
    full, written, tried = (run["settings"] for run in proof["runs"])
    assert full == "float32"
    assert written == "as written (float16, a GradScaler), emulated"
    assert tried.startswith("as recommended (float16, init_scale ")
    assert tried.endswith("), emulated")
    assert len({tuple(run["loss"]) for run in proof["runs"]}) == 3


def test_a_script_that_autocast_breaks_goes_back_to_float32(tmp_path: Path) -> None:
    found = proven(tmp_path, REFUSED, advice("float16"))
    assert found.verified is not None
    assert (found.verified.verdict, found.dtype) == ("refuted", "float32")
    assert "unsafe to autocast" in found.verified.reason
    assert [bool(run.failure) for run in found.verified.runs] == [False, False, True, False, True]


def test_after_bfloat16_float16_with_lines_that_cannot_be_changed_is_no_last_word(tmp_path: Path) -> None:
    mul = Operator("mul", "", Source("train.py", 3), "O1/float16", "overflow", "float16", 1e6)
    kept = KeepFP32("", "planted", "mul", mul.source, whole=False)
    profile = Profile(
        device=Device("cpu"), steps=Steps(STEPS, STEPS, STEPS), operators=(mul,), replay=Replay(keep=("mul",))
    )
    command = Command((write(tmp_path, REFUSED),), str(tmp_path), environment(), (), "cuda" in REFUSED)
    found = verify(profile, replace(advice("bfloat16"), keep_fp32=(kept,)), command)
    assert found.verified is not None
    assert (found.verified.verdict, found.verified.instead, found.dtype) == ("refuted", "float32", "float32")
    assert "float16, tried instead, is inconclusive: to be changed first" in found.verified.reason
    assert "float32, tried instead, is verified" in found.verified.reason


def test_float32_for_a_script_in_float32_leaves_nothing_to_verify(tmp_path: Path) -> None:
    found = proven(tmp_path, HEALTHY, advice("float32", None))
    assert found.verified is not None
    assert (found.verified.verdict, found.verified.runs) == ("inconclusive", ())
    assert found.verified.reason.startswith("there is nothing to verify: FP32 is recommended")


def test_what_the_script_casts_itself_is_no_lack_of_repetition(tmp_path: Path) -> None:
    """Infinite with and without autocast: what repeats itself to the bit is not said to be another run."""
    code = SCALED.replace("scaler.scale(loss)", "scaler.scale(loss * float('inf'))")
    assert code != SCALED
    found = proven(tmp_path, code, advice("float16", 1024.0), autocast=("float16",), scaler=True)
    assert found.verified is not None
    assert found.verified.verdict == "inconclusive"
    assert "does not repeat itself" not in found.verified.reason
    assert "the FP32 run fails as well: 10 of 10 steps were skipped for infinite gradients" in found.verified.reason


def test_few_steps_prove_nothing(tmp_path: Path) -> None:
    code = HEALTHY.replace("range(30)", "range(3)")
    assert verdict(proven(tmp_path, code, advice("float16"))) == "inconclusive"


@pytest.mark.parametrize(("dtype", "scale"), [("float16", 4096.0), ("bfloat16", 4096.0)])
def test_what_the_script_has_of_its_own_is_set(tmp_path: Path, dtype: str, scale: float) -> None:
    command = Command((write(tmp_path, SCALED),), str(tmp_path), environment(), (), True)
    done = run_trial(command, Trial(dtype, init_scale=scale), 5, dry_run=True)
    profile = done.profile
    assert done.failure == ""
    assert profile.precision.autocast == (dtype,)
    scales = {event.scale for event in profile.scaler}
    assert scales == ({4096.0} if dtype == "float16" else set())  # bfloat16 needs none


def test_as_written_is_run_where_it_differs(tmp_path: Path) -> None:
    found = proven(tmp_path, SCALED, advice("float16", 1024.0), autocast=("float16",), scaler=True)
    assert found.verified is not None
    assert found.verified.verdict == "verified", found.verified
    assert [run.settings for run in found.verified.runs] == [
        "float32",
        "as written (float16, a GradScaler), emulated",
        "as recommended (float16, init_scale 1024), emulated",
    ]


def test_the_float32_run_is_the_plain_run(tmp_path: Path) -> None:
    code = HEALTHY.replace("loss.backward()", "loss.backward()\n    print(loss.item())")
    command = Command((write(tmp_path, code),), str(tmp_path), environment())
    done = run_trial(command, Trial("float32"), 30)
    profile = done.profile
    assert done.failure == ""
    told = plain(tmp_path, "train.py").out.split()[:30]
    assert [str(loss) for loss in profile.loss] == told


def test_a_script_without_seeds_gets_them(tmp_path: Path) -> None:
    command = Command((write(tmp_path, UNSEEDED),), str(tmp_path), environment())
    first, second = (run_trial(command, Trial("float32"), 6).profile for _ in range(2))
    assert len(first.loss) == 6
    assert first.loss == second.loss


def test_a_script_that_fails_is_not_run_again(tmp_path: Path) -> None:
    code = HEALTHY.replace("range(30)", "range(2)") + "raise SystemExit(3)\n"
    done = probed(tmp_path, "--verify", write(tmp_path, code))
    assert done.status == 3
    assert done.report is not None
    assert "the script failed, so it was not run again" in done.report
