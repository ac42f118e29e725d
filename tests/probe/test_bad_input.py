"""Scripts that are none, fail or hold nothing to see: a clear message, the right status, and what was collected is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe.running import TRAINING, environment, plain, probed, write

# --- nothing to run -------------------------------------------------------------------------------------------------------

NOTHING = {
    "none.py": "no such script: none.py",
    "python": "no such script: python (give the script itself, without `python` before it)",
    "-": "a script on stdin cannot be probed; save it to a file",
    "empty": "no __main__.py in empty",
    "binary.py": "binary.py is a binary file, not a Python script",
    "latin.py": "latin.py is not a Python script: it is not UTF-8 text, and declares no other encoding",
    "cookie.py": "cookie.py is not a Python script: unknown encoding: nonsense",
    "notebook.ipynb": "notebook.ipynb is a notebook; use `with Probe(steps=50) as probe:` in one of its cells",
    "old.pyc": "old.pyc was compiled by another version of Python",
    "-m none": "no module named none",
    "-m empty.none": "no module named empty.none",
    "-m package": "package is a package without a __main__.py and cannot be run",
    "-m .package": "a relative module name cannot be run: .package",
}


@pytest.mark.parametrize("words", NOTHING)
def test_what_is_no_script_is_refused(tmp_path: Path, words: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path, "", "package/__init__.py")
    write(tmp_path, "{}", "notebook.ipynb")
    for name, content in (
        ("binary.py", Path(sys.executable).read_bytes()[:1000]),
        ("latin.py", b"import sys\n\n\nname = 'caf\xe9'\n"),
        ("cookie.py", b"# coding: nonsense\n"),
        ("old.pyc", b"\x00\x01\x02\x03" + b"\x00" * 20),
    ):
        (tmp_path / name).write_bytes(content)
    run = probed(tmp_path, *words.split())
    assert (run.status, run.out, run.err, run.report) == (2, "", f"amp-doctor: {NOTHING[words]}\n", None)
    assert run.profile is None


def test_a_script_that_does_not_start_leaves_the_old_profile(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text("old")
    words = [sys.executable, "-m", "amp_doctor", "probe", "--profile", "profile.json", "none.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert (tmp_path / "profile.json").read_text() == "old"


PLACES = {
    "none/profile.json": "no such directory: none",
    ".": "is a directory",
    "train.py/profile.json": "no such directory: train.py",
    "/proc/profile.json": "No such file or directory",
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unwritable_profile_is_refused_before_the_script_runs(tmp_path: Path, place: str) -> None:
    write(tmp_path, "print('ran')\n")
    words = [sys.executable, "-m", "amp_doctor", "probe", "--profile", place, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "profile" in done.stderr
    assert PLACES[place].split(":")[0].lower() in done.stderr.lower()


@pytest.mark.parametrize("place", ["/dev/null", "link.json"])
def test_a_device_and_a_link_stay_what_they_are(tmp_path: Path, place: str) -> None:
    write(tmp_path, "print('ran')\n")
    (tmp_path / "link.json").symlink_to("real.json")
    before = os.lstat(tmp_path / place).st_mode
    words = [sys.executable, "-m", "amp_doctor", "probe", "--output", "report.txt", "--profile", place, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert os.lstat(tmp_path / place).st_mode == before
    if place == "link.json":
        assert json.loads((tmp_path / "real.json").read_text())["ended"] == "finished"


# --- scripts that fail ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("raise ValueError('no data')\n" + TRAINING, 0),
        (TRAINING + "step()\nstep()\nraise ValueError('no data')\n", 2),
        (TRAINING + "step()\nmodel(torch.ones(2, 4)).sum().backward(retain_graph='no')\n", 1),
        (TRAINING + "step()\noptimizer.step(lambda: {}['loss'])\n", 1),
        (TRAINING + "model.register_forward_hook(lambda *a: 1 / 0)\nstep()\n", 0),
        (TRAINING + "class E(BaseException):\n    pass\n\n\nstep()\nraise E\n", 1),
    ],
    ids=["before", "between", "backward", "optimizer", "hook", "BaseException"],
)
def test_a_script_that_raises(tmp_path: Path, code: str, steps: int) -> None:
    """The traceback is that of a plain run, whatever of ours the exception came through."""
    write(tmp_path, code)
    one, other = plain(tmp_path, "train.py"), probed(tmp_path, "train.py")
    assert other.err == one.err
    assert (other.status, other.out) == (one.status, one.out) == (1, "")
    assert (other.steps, other.ended) == (steps, "exception")
    assert "the script raised " in other.notes
    assert other.report is not None


def test_a_forward_pass_that_raises(tmp_path: Path) -> None:
    """Hooks make torch take another way through its own code; the user's lines and the words are the same."""
    write(tmp_path, TRAINING + "step()\nmodel(torch.ones(2, 5))\n")
    one, other = plain(tmp_path, "train.py"), probed(tmp_path, "train.py")
    assert other.err.splitlines()[:3] == one.err.splitlines()[:3]
    assert other.err.splitlines()[-1] == one.err.splitlines()[-1]
    assert "amp_doctor" not in other.err
    assert (other.status, other.steps, other.ended) == (1, 1, "exception")


def test_a_script_that_exits_by_itself(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + "step()\nsys.exit(3)\n")
    run = probed(tmp_path, "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (3, "", "", 1, "exception")
    assert run.notes == "the script exited with status 3"
    assert run.report is not None


def test_a_script_that_fails_in_atexit(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + "import atexit\n\n\n@atexit.register\ndef last():\n    raise ValueError\n\n\nstep()\n")
    run = probed(tmp_path, "train.py")
    assert (run.status, run.steps, run.ended) == (0, 1, "finished")
    assert run.err.startswith("Exception ignored in atexit callback: <function last at ")
    assert run.err.endswith("    raise ValueError\nValueError: \n")
    assert "amp_doctor" not in run.err


def test_a_module_that_raises_shows_no_frame_of_ours(tmp_path: Path) -> None:
    write(tmp_path, "def f():\n    raise ValueError('no data')\n\n\nf()\n", "package/train.py")
    one, other = plain(tmp_path, "-m", "package.train"), probed(tmp_path, "-m", "package.train")
    runpy = [line for line in one.err.splitlines(keepends=True) if "<frozen runpy>" in line]
    assert other.err == "".join(line for line in one.err.splitlines(keepends=True) if line not in runpy)
    assert (other.status, len(runpy)) == (1, 2)


# --- scripts with nothing, or nothing good, to see -------------------------------------------------------------------------


def test_weights_that_are_nan_from_the_start(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + "torch.nn.init.constant_(model.weight, float('nan'))\nwhile True:\n    step()\n")
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (1, "", "", 3, "steps")
    assert run.profile is not None
    first = run.profile["first_nonfinite"]
    assert (first["phase"], first["layer"], first["value"]) == ("weight", "Linear", "nan")


def test_a_model_without_gradients(tmp_path: Path) -> None:
    code = (
        "model.requires_grad_(False)\nwith torch.no_grad():\n    for _ in range(5):\n        model(torch.ones(2, 4))\n"
    )
    write(tmp_path, TRAINING + code)
    run = probed(tmp_path, "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "", "", 0, "finished")
    assert "no optimizer step was seen" in run.notes
    assert run.report is not None


def test_steps_without_a_backward_pass(tmp_path: Path) -> None:
    write(tmp_path, TRAINING + "while True:\n    optimizer.step()\n")
    run = probed(tmp_path, "--steps", "3", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "", "", 3, "steps")


def test_a_torch_that_is_not_ours(tmp_path: Path) -> None:
    """The script runs on; the report says why there is nothing to see, and a gate does not pass."""
    write(tmp_path, "", "torch/__init__.py")
    write(tmp_path, "import torch\nprint(torch.__name__)\n")
    run = probed(tmp_path, "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (2, "torch\n", "", 0, "finished")
    assert "the probe could not begin" in run.notes


def test_an_empty_script(tmp_path: Path) -> None:
    write(tmp_path, "")
    run = probed(tmp_path, "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "", "", 0, "finished")
