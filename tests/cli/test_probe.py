"""`amp-doctor probe`: options, what belongs to the script, where the report goes, exit statuses.

The runner has tests of its own; most tests here stand in for it.
"""

from __future__ import annotations

import gc
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amp_doctor.cli.probe import MODES
from amp_doctor.diagnosis.serial import from_values
from amp_doctor.probe import run, settings
from amp_doctor.probe.run import Target
from tests.cli.terminal import shown
from tests.conftest import ROOT
from tests.invoke import Done, amp_doctor
from tests.report.samples import HEAD, SICK

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Profile

pytestmark = pytest.mark.usefixtures("here")

WELL = replace(SICK, layers=(HEAD,), operators=(), first_nonfinite=None, loss=(1.0, 0.5), scaler=())
TRAIN = """\
import gc, sys
import torch
print("arguments", sys.argv[1:], "gc", gc.get_threshold(), flush=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step)
"""


class Runner:
    """Stands in for `run_script`: it remembers what it was asked for and reports `profile`."""

    def __init__(self) -> None:
        self.profile: Profile = WELL
        self.status: int | None = None
        self.asked: dict[str, Any] = {}

    def __call__(
        self,
        target: Target,
        wanted: settings.Settings,
        *,
        report: Callable[[Profile, int | None], int],
        progress: Callable[[int, int], None] | None,
        **more: Any,
    ) -> int:
        self.asked = {"target": target, "settings": wanted, **more}
        if progress is not None:
            progress(1, wanted.steps)
        return report(self.profile, self.status)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    stand_in = Runner()
    monkeypatch.setattr(run, "run_script", stand_in)
    return stand_in


def probed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A real run."""
    command = [sys.executable, "-m", "amp_doctor", "probe", *arguments]
    told = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, env=told, capture_output=True, text=True, check=False)


def test_the_modes_are_those_of_the_probe() -> None:
    assert MODES == settings.MODES


def test_everything_after_the_script_is_the_scripts(runner: Runner) -> None:
    amp_doctor("probe", "--steps", "7", "train.py", "--steps", "9", "-x", "--", "--help", "--mode=z")
    assert runner.asked["target"] == Target("train.py", None, ("--steps", "9", "-x", "--", "--help", "--mode=z"))
    wanted = runner.asked["settings"]
    assert (wanted.steps, wanted.script) == (7, "train.py")
    assert wanted.command == ("train.py", "--steps", "9", "-x", "--", "--help", "--mode=z")


def test_everything_after_the_module_is_the_modules(runner: Runner) -> None:
    amp_doctor("probe", "-m", "pkg.train", "--lr", "0.1", "-m", "x")
    assert runner.asked["target"] == Target(None, "pkg.train", ("--lr", "0.1", "-m", "x"))
    assert runner.asked["settings"].command == ("-m", "pkg.train", "--lr", "0.1", "-m", "x")


def test_options_reach_the_runner(runner: Runner, here: Path) -> None:
    amp_doctor("probe", "train.py")
    assert runner.asked["settings"] == settings.Settings(script="train.py", command=("train.py",))
    assert (runner.asked["profile_file"], runner.asked["scratch"]) == (None, None)
    assert runner.asked["stdout_to_stderr"] is False
    options = "--mode observe --every 3 --layers *.rnn --time-limit 2.5 --scratch s --profile p.json".split()
    amp_doctor("probe", *options, "train.py")
    assert runner.asked["settings"] == settings.Settings(
        50, "observe", 3, "*.rnn", 2.5, script="train.py", command=("train.py",)
    )
    assert (runner.asked["profile_file"], runner.asked["scratch"]) == (str(here / "p.json"), "s")
    amp_doctor("probe", "--dry-run", "cuda", "train.py")
    assert runner.asked["settings"] == settings.Settings(dry_run=True, script="train.py", command=("train.py",))
    amp_doctor("probe", "--output-format", "json", "train.py")
    assert runner.asked["stdout_to_stderr"] is True
    amp_doctor("probe", "--output-format", "json", "--output", "r.json", "train.py")
    assert runner.asked["stdout_to_stderr"] is False
    assert json.loads(Path("r.json").read_text())["profile"]["script"] == "train.py"


@pytest.mark.parametrize(
    ("sick", "script_status", "arguments", "status"),
    [
        (False, None, [], 0),
        (True, None, [], 1),
        (True, None, ["--fail-on", "never"], 0),
        (True, None, ["--fail-on", "error"], 1),
        (True, 3, [], 3),
        (False, 1, [], 1),
        (True, 130, [], 130),
        (True, 3, ["--fail-on", "never"], 3),
    ],
)
def test_exit_status(runner: Runner, sick: bool, script_status: int | None, arguments: list[str], status: int) -> None:
    runner.profile, runner.status = (SICK if sick else WELL), script_status
    done = amp_doctor("probe", *arguments, "train.py")
    assert (done.status, done.err) == (status, "")
    assert done.out.startswith("\nVerdict: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no script to probe"),
        (["--steps", "0", "a.py"], "0 is not in the range x>=1"),
        (["--every", "0", "a.py"], "0 is not in the range x>=1"),
        (["--time-limit", "0", "a.py"], "0.0 is not in the range x>0"),
        (["--mode", "guess", "a.py"], "'guess' is not one of 'auto', 'observe', 'calibrate'"),
        (["--output-format", "xml", "a.py"], "'xml' is not one of 'text', 'json'"),
        (["--stps", "3", "a.py"], "No such option '--stps'"),
        (["--output", "no/such/place", "a.py"], "--output"),
        (["--output", ".", "a.py"], "is a directory"),
        (["--output", "x.json", "--profile", "./x.json", "a.py"], "--profile and --output name the same file"),
    ],
)
def test_wrong_usage_ends_with_2_before_the_script(
    runner: Runner, here: Path, arguments: list[str], words: str
) -> None:
    done = amp_doctor("probe", *arguments)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert "Traceback" not in done.err
    assert runner.asked == {}
    assert list(here.iterdir()) == []


def test_a_file_that_could_be_written_is_left_as_it_is(runner: Runner, here: Path) -> None:
    (here / "old.txt").write_text("old")
    seen = []

    def look(*arguments: object, **more: object) -> int:
        seen.append(((here / "old.txt").read_text(), (here / "new.txt").exists()))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_script", look)
        amp_doctor("probe", "--output", "old.txt", "a.py")
        amp_doctor("probe", "--output", "new.txt", "a.py")
    assert seen == [("old", False), ("old", False)]


def test_a_report_that_finds_no_room_is_no_failure_of_the_script(runner: Runner, here: Path) -> None:
    (here / "out").mkdir()

    def vanish(target: object, wanted: object, *, report: Callable[..., int], **more: object) -> int:
        (here / "out").rmdir()
        return report(WELL, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_script", vanish)
        done = amp_doctor("probe", "--output", "out/report.txt", "a.py")
    assert done == Done(2, "", f"amp-doctor: --output {here}/out/report.txt: No such file or directory\n")


def test_a_bug_of_ours_in_the_report_is_told_as_such(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(profile: object) -> object:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("amp_doctor.diagnosis.recommend.recommend", broken)
    done = amp_doctor("probe", "a.py")
    assert done.status == 3
    assert "this is a bug of amp-doctor, not of your code" in done.err


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert amp_doctor("probe", "a.py") == Done(
        2, "", "amp-doctor: probe needs torch, which is not installed here: pip install 'amp-doctor[probe]'\n"
    )
    assert amp_doctor("probe", "--help").status == 0
    assert amp_doctor("--help").status == 0


@pytest.mark.parametrize(("release", "status"), [("2.3.1+cu121", 2), ("1.13.1", 2), ("2.10.0", 0), ("2a0", 0)])
def test_a_torch_that_is_too_old_is_told(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, release: str, status: int
) -> None:
    monkeypatch.setattr("amp_doctor.cli.probe.metadata.version", lambda _: release)
    done = amp_doctor("probe", "a.py")
    words = f"amp-doctor: probe needs torch 2.4 or newer; here is {release}: pip install 'amp-doctor[probe]'\n"
    assert (done.status, done.err) == (status, words if status else "")


def test_a_broken_torch_is_no_bug_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr("amp_doctor.cli.probe.import_module", broken)
    done = amp_doctor("probe", "a.py")
    assert (done.status, done.err) == (
        2,
        "amp-doctor: torch cannot be loaded: libcudart.so.12: cannot open shared object file\n",
    )


def test_the_directory_and_environment_of_the_report_are_those_before_the_script(
    runner: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "sub").mkdir()

    def wander(target: object, wanted: object, *, report: Callable[..., int], **more: object) -> int:
        monkeypatch.chdir("sub")
        monkeypatch.setenv("COLUMNS", "20")
        return report(SICK, None)

    monkeypatch.setattr(run, "run_script", wander)
    amp_doctor("probe", "--output", "r.txt", "a.py")
    assert max(len(line) for line in (here / "r.txt").read_text().splitlines()) > 80


def test_a_real_run(here: Path) -> None:
    (here / "train.py").write_text(TRAIN)
    done = probed(*"--steps 4 --output-format json --profile p.json --fail-on never train.py --lr 0.1".split())
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["profile"]["steps"] == {"requested": 4, "attempted": 4, "taken": 4, "skipped": 0}
    assert document["profile"]["command"] == ["train.py", "--lr", "0.1"]
    said = done.stderr.splitlines()
    # The script had Python's own garbage collection, its arguments, and stderr for its stdout.
    assert said == [f"arguments ['--lr', '0.1'] gc {gc_of_python()}", "step 0", "step 1", "step 2"]
    saved = json.loads((here / "p.json").read_text())
    assert from_values(saved, "") == from_values(document, "")


def gc_of_python() -> tuple[int, ...]:
    code = "import gc; print(*gc.get_threshold())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


def test_a_script_may_fail_on_what_its_terminal_lacks(here: Path) -> None:
    (here / "train.py").write_text(TRAIN + "print('größe')\n")
    plain = [sys.executable, "train.py"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    alone = subprocess.run(plain, env=environment, capture_output=True, text=True, check=False)
    assert alone.returncode == 1
    done = probed("--steps", "20", "train.py", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "UnicodeEncodeError: 'ascii' codec can't encode characters" in done.stderr
    assert done.stderr == alone.stderr
    told = done.stdout.removeprefix(alone.stdout)
    assert told.startswith("\nThe script failed with an exception, after 9 steps of 20.\n\nVerdict: ")
    assert told.isascii()


def test_collecting_garbage_is_left_to_python_for_a_probe_only() -> None:
    code = (
        "import gc, sys\nfrom amp_doctor.cli import main\nsys.argv[1:] = {!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*gc.get_threshold())"
    )
    told = {}
    for verb in ("probe", "rules"):
        done = subprocess.run(
            [sys.executable, "-c", code.format([verb, "--help"])],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        told[verb] = tuple(map(int, done.stdout.splitlines()[-1].split()))
    assert told == {"probe": gc_of_python(), "rules": (200_000, 20, 20)}
    assert gc.isenabled()


def test_json_goes_into_a_file_while_the_script_has_the_terminal(here: Path) -> None:
    (here / "train.py").write_text(TRAIN)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "amp_doctor", "probe", *"--steps 4 --output-format json train.py".split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with (here / "report.json").open("w") as file:
        done = subprocess.run(command, env=environment, stdout=file, stderr=theirs, check=False)
    screen = shown(theirs, ours)
    assert done.returncode == 0
    assert json.loads((here / "report.json").read_text())["profile"]["steps"]["attempted"] == 4
    lines = [line.rpartition("\x1b[K")[2].rpartition("\r")[2] for line in screen.split("\r\n")]
    assert lines == [f"arguments [] gc {gc_of_python()}", "step 0", "step 1", "step 2", ""]


def test_a_page_is_written_beside_the_text(runner: Runner, here: Path) -> None:
    (here / "train.py").write_text("import torch\nscaler = torch.cuda.amp.GradScaler()\n")
    done = amp_doctor("probe", "--html", "page.html", "train.py")
    # What the linter finds is in the page alone: `check` is the verb that judges by both.
    assert done.status == 0
    assert "AMP102" not in done.out
    assert "AMP102" in (here / "page.html").read_text("utf-8")


@pytest.mark.parametrize("style", ["html", "sarif"])
def test_the_script_prints_elsewhere_when_the_report_is_for_programs(runner: Runner, style: str) -> None:
    done = amp_doctor("probe", "--format", style, "train.py")
    assert runner.asked["stdout_to_stderr"] is True
    assert done.out.startswith({"html": "<!DOCTYPE html>", "sarif": "{"}[style])


def test_a_page_that_cannot_be_written_is_refused_before_the_script_runs(runner: Runner) -> None:
    refused = amp_doctor("probe", "--html", "no/page.html", "train.py")
    assert (refused.status, runner.asked) == (2, {})
    assert "--html" in refused.err
