"""Scripts that cast to half: their FP32 run is, bit for bit, the run of the script without the casts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.profile import WEIGHT_GRAD, Layer, OptimizerLog, Profile, Site
from amp_doctor.diagnosis.verdict import still_half
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe.fresh import Fresh
from amp_doctor.probe.rerun import Command, environment_of, rerun
from amp_doctor.probe.trial import Trial
from tests.probe.running import environment, probed, write

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 6

# MODEL, IN and OUT are casts, or nothing.
CODE = """\
import numpy
import torch
import torch.nn.functional as F

torch.manual_seed(0)
SETUP
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
teacher = torch.randn(16, 4, dtype=torch.float32)
for _ in range(30):
    x = torch.randn(32, 16, dtype=torch.float32)
    y = (x @ teacher).argmax(1)
    optimizer.zero_grad()
    F.cross_entropy(OUT(model(IN(x))), y).backward()
    optimizer.step()
"""
# Of setup, model, what goes in, what comes out.
CASTS = {
    "half": ("", "model.half()", "torch.Tensor.half", "torch.Tensor.float"),
    "bfloat16": ("", "model.bfloat16()", "torch.Tensor.bfloat16", "torch.Tensor.float"),
    "to": ("", "model.to(torch.bfloat16)", "(lambda x: x.to(torch.bfloat16))", "(lambda x: x.to(torch.float32))"),
    "to device and dtype": ("", 'model.to("cpu", torch.float16)', "(lambda x: x.to(dtype=torch.float16))", "torch.Tensor.float"),
    "type": ("", "model.type(torch.float16)", '(lambda x: x.type("torch.HalfTensor"))', "torch.Tensor.float"),
    "default dtype": ("torch.set_default_dtype(torch.bfloat16)", "", "torch.Tensor.bfloat16", "torch.Tensor.float"),
    "parameters one by one": ("", "for p in model.parameters():\n    p.data = p.data.half()\nmodel[1].half()",
                              "torch.Tensor.half", "torch.Tensor.float"),
    "from numpy": ("", "model.half()", "(lambda x: torch.from_numpy(x.numpy().astype(numpy.float32)))", "torch.Tensor.float"),
}  # fmt: skip


def losses(where: Path, casts: tuple[str, str, str, str], trial: Trial) -> tuple[float, ...]:
    """Of a run of the script with these casts."""
    code = CODE
    for word, cast in zip(("SETUP", "MODEL", "IN(", "OUT("), casts, strict=True):
        code = code.replace(word, f"{cast or 'torch.clone'}(" if word.endswith("(") else cast)
    asked = Command((write(where, code),), str(where), environment())
    with Fresh(environment_of(asked.environment), str(where), ["torch"]) as fresh:
        done = rerun(fresh, asked, trial, STEPS, dry_run=False, seconds=5.0)
    assert done.failure == ""
    assert still_half(done.profile) == ""
    return done.profile.loss


@pytest.mark.parametrize("casts", CASTS.values(), ids=CASTS)
def test_without_the_casts_it_is_the_script_that_has_none(tmp_path: Path, casts: tuple[str, str, str, str]) -> None:
    full = losses(tmp_path, ("", "", "", ""), Trial("float32"))
    assert len(full) == STEPS
    assert losses(tmp_path, casts, Trial("float32", widen=True)) == full


def test_a_recommendation_for_half_weights_is_tried_with_weights_in_float32(tmp_path: Path) -> None:
    code = CODE.replace("SETUP", "").replace("MODEL", "model.half()")
    code = code.replace("IN(", "torch.Tensor.half(").replace("OUT(", "torch.Tensor.float(")
    done = probed(tmp_path, "--steps", "10", "--verify", "--format", "json", write(tmp_path, code))
    assert done.report is not None, done.err
    proof = json.loads(done.report)["recommendation"]["verified"]
    assert proof["verdict"] == "verified", proof
    full, written, tried = proof["runs"]
    assert full["settings"] == "float32, casts to half undone"
    assert written["settings"] == "as written (weights in float16), emulated"
    assert "casts to half undone), emulated" in tried["settings"]
    assert len({tuple(run["loss"]) for run in proof["runs"]}) == 3


def test_a_script_that_insists_on_half_is_inconclusive_and_says_why(tmp_path: Path) -> None:
    code = CODE.replace("SETUP", "").replace(
        "MODEL", "model.half()\nassert model[0].weight.dtype == torch.float16, 'no half'"
    )
    code = code.replace("IN(", "torch.Tensor.half(").replace("OUT(", "torch.Tensor.float(")
    done = probed(tmp_path, "--steps", "10", "--verify", "--format", "json", write(tmp_path, code))
    assert done.report is not None, done.err
    proof = json.loads(done.report)["recommendation"]["verified"]
    assert proof["verdict"] == "inconclusive"
    assert "casts to half, and breaks when that is undone" in proof["reason"]
    assert "no half" in proof["reason"]
    assert [bool(run["failure"]) for run in proof["runs"]] == [True, False]


# The model is in float32, and the loss is summed in half: it is infinite as it is written.
LOSS = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(30):
    x = torch.randn(512, 16)
    optimizer.zero_grad()
    ((model(x).half() - 4 * x.half()) ** 2).sum().backward()
    optimizer.step()
"""


def test_casts_that_break_the_loss_are_undone_to_have_something_to_compare_with(tmp_path: Path) -> None:
    done = probed(tmp_path, "--steps", "8", "--verify", "--format", "json", write(tmp_path, LOSS))
    assert done.report is not None, done.err
    proof = json.loads(done.report)["recommendation"]["verified"]
    full, written, *_ = proof["runs"]
    assert full["settings"] == "float32, casts to half undone"
    assert written["settings"] == "as written (float32, and casts to half)"
    assert all(isinstance(loss, float) for loss in full["loss"])
    assert written["loss"] == ["inf"] * 8


def test_weights_that_stay_half_are_named() -> None:
    def site(dtype: str) -> dict[str, Site]:
        return {WEIGHT_GRAD: Site(dtype, ExponentHistogram())}

    assert still_half(Profile()) == ""
    assert still_half(Profile(layers=(Layer("a", "Linear", sites=site("float32")),))) == ""
    assert "weights of b half" in still_half(Profile(layers=(Layer("b", "Linear", sites=site("float16")),)))
    assert "half in a way" in still_half(Profile(optimizers=(OptimizerLog("SGD", dtypes=("bfloat16",)),)))
