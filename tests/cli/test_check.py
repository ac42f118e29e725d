"""`amp-doctor check`: the linter and the probe in one report, with one exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator

from amp_doctor.diagnosis.profile import Precision, Profile, Source
from amp_doctor.probe import run
from tests.cli.test_probe import WELL, Runner
from tests.conftest import ROOT
from tests.invoke import amp_doctor
from tests.report.pages import Seen
from tests.report.samples import SICK

# Float16 autocast without a scaler (AMP209), in a module beside the script; the script itself is clean.
ENGINE = """\
import torch


def step(model, optimizer, x):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TRAIN = """\
import sys
import torch
from engine import step

print("arguments", sys.argv[1:])
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    step(model, optimizer, torch.ones(2, 4))
if "--fail" in sys.argv:
    sys.exit(7)
"""
AUTOCAST = Precision(("float16",), False, ("float32",))
WHERE = Source("engine.py", 8)


@pytest.fixture(autouse=True)
def project(here: Path) -> None:
    (here / "train.py").write_text(TRAIN)
    (here / "engine.py").write_text(ENGINE)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    stand_in = Runner()
    stand_in.profile = well(AUTOCAST)
    monkeypatch.setattr(run, "run_script", stand_in)
    return stand_in


def well(precision: Precision, **more: Any) -> Profile:
    """A run in which nothing went wrong."""
    return replace(WELL, precision=precision, **more)


def checked(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A real run."""
    command = [sys.executable, "-m", "amp_doctor", "check", *arguments]
    told = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, env=told, capture_output=True, text=True, check=False)


def test_source_and_run_stand_in_one_report(runner: Runner) -> None:
    runner.profile = replace(SICK, precision=AUTOCAST, scaler=())
    done = amp_doctor("check", "train.py")
    assert done.status == 1
    source, _, measured = done.out.partition("Verdict: ")
    # The module that the script imports is linted, too.
    assert "engine.py:8:5: warning AMP209 float16-without-scaler" in source
    assert "confirmed by the run: AMP60" in " ".join(source.split())
    assert "Layers that matter" in measured
    assert runner.asked["target"] == run.Target("train.py", None, ())


def test_what_the_run_clears_does_not_count(runner: Runner) -> None:
    done = amp_doctor("check", "train.py")
    told = " ".join(done.out.split())
    assert "cleared by the run: without a scaler no gradient was lost in the 1 layers" in told
    assert done.status == 0
    # Of this run nothing is known about it, so it counts as in `lint`.
    runner.profile = well(Precision((), False, ("float32",)))
    silent = amp_doctor("check", "train.py")
    assert "AMP209" in silent.out
    assert "not judged by the run: the run did not enter autocast to float16" in " ".join(silent.out.split())
    assert silent.status == 1
    assert amp_doctor("check", "--fail-on", "never", "train.py").status == 0


def test_the_scripts_own_failure_outweighs_all(runner: Runner) -> None:
    runner.status = 7
    assert amp_doctor("check", "train.py").status == 7


def test_options_are_those_of_the_probe(runner: Runner) -> None:
    from amp_doctor.cli.check import command as check
    from amp_doctor.cli.probe import command as probe

    assert [one.name for one in check.params] == [one.name for one in probe.params]
    amp_doctor("check", "--steps", "7", "--mode", "observe", "train.py", "--steps", "9")
    assert (runner.asked["settings"].steps, runner.asked["settings"].mode) == (7, "observe")
    assert runner.asked["target"].arguments == ("--steps", "9")
    assert amp_doctor("check").status == 2


def test_json_has_both(runner: Runner) -> None:
    runner.profile = replace(SICK, precision=AUTOCAST, scaler=())
    done = amp_doctor("check", "--format", "json", "train.py")
    document = json.loads(done.out)
    assert list(document) == ["schema", "tool", "profile", "findings", "recommendation", "lint"]
    [found] = document["lint"]["findings"]
    assert (found["code"], found["path"], found["line"]) == ("AMP209", "engine.py", 8)
    assert found["run"]["verdict"] == "confirmed"
    assert found["run"]["codes"]
    assert amp_doctor("report", "--format", "json", "--fail-on", "never", saved(done.out)).status == 0


def saved(text: str) -> str:
    Path("saved.json").write_text(text)
    return "saved.json"


def test_sarif_has_both_and_is_valid(runner: Runner) -> None:
    runner.profile = replace(
        SICK, precision=AUTOCAST, scaler=(), layers=tuple(replace(one, source=WHERE) for one in SICK.layers)
    )
    document = json.loads(amp_doctor("check", "--format", "sarif", "train.py").out)
    schema = json.loads((ROOT / "tests" / "data" / "sarif-schema-2.1.0.json").read_text("utf-8"))
    Draft4Validator(schema).validate(document)
    [log] = document["runs"]
    rules = {result["ruleId"] for result in log["results"]}
    assert "AMP209" in rules
    assert any(rule.startswith("AMP60") for rule in rules)
    of_layers = [one["locations"][0] for one in log["results"] if "logicalLocations" in one["locations"][0]]
    assert of_layers
    for place in of_layers:
        assert place["physicalLocation"]["artifactLocation"]["uri"] in ("engine.py", "model.py")
        assert list(place["physicalLocation"]["region"]) == ["startLine"]


def test_the_page_has_both(runner: Runner, here: Path) -> None:
    runner.profile = replace(
        SICK, precision=AUTOCAST, layers=tuple(replace(one, source=WHERE) for one in SICK.layers), scaler=()
    )
    done = amp_doctor("check", "--html", "page.html", "train.py")
    assert "Verdict: " in done.out
    values = Seen((here / "page.html").read_text("utf-8")).values
    assert [(one[0], one[3]) for one in values["lint"]] == [("AMP209", "confirmed")]
    # The finding stands at the line that calls these layers.
    assert all(layer[4] == [0] for layer in values["layers"])


def test_a_script_that_is_no_python_is_not_run(runner: Runner, here: Path) -> None:
    (here / "train.py").write_text("import torch\ntorch.autocast('cuda'\n")
    done = amp_doctor("check", "train.py")
    assert done.status == 1
    assert "AMP001" in done.out
    assert "Verdict" not in done.out
    assert done.err.startswith("amp-doctor: the script was not run: train.py: ")
    assert runner.asked == {}
    document = json.loads(amp_doctor("check", "--format", "json", "train.py").out)
    assert [one["code"] for one in document["lint"]["findings"]] == ["AMP001"]
    assert document["profile"]["steps"]["attempted"] == 0


def test_without_torch_the_source_is_checked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_doctor.cli.probe.find_spec", lambda _: None)
    done = amp_doctor("check", "train.py")
    assert done.status == 1
    assert "AMP209" in done.out
    assert "the script was not run: probe needs torch" in done.err


def test_a_script_that_is_not_there_is_told() -> None:
    done = amp_doctor("check", "gone.py")
    assert done.status == 2
    assert "gone.py" in done.err


def test_modules_are_found_from_the_working_directory(runner: Runner, here: Path) -> None:
    done = amp_doctor("check", "-m", "train", "--lr", "1")
    assert "AMP209" in done.out
    assert runner.asked["target"] == run.Target(None, "train", ("--lr", "1"))


def test_a_real_script_is_linted_and_run(here: Path) -> None:
    done = checked("--steps", "4", "train.py", "--epochs", "3")
    assert "arguments ['--epochs', '3']" in done.stdout
    assert "AMP209" in done.stdout
    # There is no GPU here, and the module asks for one.
    assert "Emulated" in done.stdout
    assert "engine.py:5 enters torch.autocast" in done.stderr
    assert "Emulated" not in checked("--steps", "4", "--dry-run", "off", "train.py").stdout
    # No libcst is loaded where the script runs, and what the script does to modules harms no one.
    (here / "train.py").write_text(f"import sys\nassert 'libcst' not in sys.modules\n{TRAIN}")
    assert "Error" not in checked("--steps", "2", "train.py").stderr
    assert checked("--steps", "50", "train.py", "--fail").returncode == 7


def test_a_file_named_like_a_library_does_not_take_its_place(here: Path) -> None:
    (here / "libcst.py").write_text("raise SystemExit('the wrong one')\n")
    assert "AMP209" in amp_doctor("check", "--fail-on", "never", "train.py").out
