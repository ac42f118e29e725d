"""`--scratch`: the script runs in a copy, and the working directory is byte for byte what it was."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.profile import FirstNonfinite, Layer, Operator, Profile, Replay, Source
from amp_doctor.errors import ScriptError
from amp_doctor.probe import scratch
from amp_doctor.probe.program import Target
from amp_doctor.probe.scratch import Scratch
from tests.probe.running import TRAINING, probed, write

if TYPE_CHECKING:
    from pathlib import Path


def fingerprint(where: Path) -> dict[str, str]:
    """Each path below `where` with its kind, time and content."""
    found = {}
    for path in sorted(where.rglob("*")):
        link = str(path.readlink()).encode() if path.is_symlink() else b""
        digest = hashlib.sha256(link or (path.read_bytes() if path.is_file() else b"")).hexdigest()
        found[str(path.relative_to(where))] = f"{path.lstat().st_mode} {path.lstat().st_mtime_ns} {digest}"
    return found


BUSY = """\
import os
import local
from package import inner

assert os.getcwd() == os.path.dirname(os.path.abspath(__file__)) == os.environ["PWD"], os.getcwd()
assert local.__file__ == os.path.abspath("local.py"), local.__file__
assert sys.path[0] == os.getcwd(), sys.path
print(os.path.basename(os.getcwd()), open("input.txt").read(), open("link.txt").read())
step()
step()
os.mkdir("runs")
open("runs/log.txt", "w").write("log")
open("input.txt", "a").write("more")
os.remove("old.txt")
try:
    while True:
        step()
finally:
    torch.save(model.state_dict(), "best.pt")
"""


def test_the_working_directory_stays_as_it_was(tmp_path: Path) -> None:
    home, outside = tmp_path / "project", tmp_path / "outside"
    write(home, TRAINING + BUSY)
    for name in ("local.py", "package/inner.py", "package/__init__.py", ".git/config", "venv/pyvenv.cfg"):
        write(home, "", name)
    for name in ("input.txt", "old.txt", "best.pt"):
        write(home, "text", name)
    write(outside, "linked", "linked.txt")
    (home / "link.txt").symlink_to("../outside/linked.txt")
    before = fingerprint(home)
    more = {"PYTHONDONTWRITEBYTECODE": ""}
    run = probed(home, "--steps", "4", "--scratch", "../scratch", "train.py", **more)
    assert (run.status, run.out, run.err, run.steps) == (0, "project text linked\n", "", 4)
    assert fingerprint(home) == before
    copy = tmp_path / "scratch" / "project"
    assert (copy / "input.txt").read_text() == "textmore"
    assert not {".git", "venv", "old.txt"} & set(os.listdir(copy))
    notes = run.notes.splitlines()
    assert notes[-4:] == [
        f"the script ran in a copy of the working directory: {copy}",
        "created there: runs/log.txt",
        "changed there: best.pt, input.txt",
        "removed there: old.txt",
    ]
    assert "the stopped script saved best.pt" in run.notes
    # What the report points at is the user's own file.
    assert run.profile is not None
    [layer] = run.profile["layers"]
    assert layer["source"]["path"] == str(home / "train.py")


@pytest.mark.parametrize("words", [["ABSOLUTE"], ["-m", "package.train"], ["sub/../train.py"]], ids=" ".join)
def test_the_script_that_runs_is_that_of_the_copy(tmp_path: Path, words: list[str]) -> None:
    home = tmp_path / "project"
    code = "import os\nprint(os.path.relpath(os.path.realpath(__file__), os.getcwd()))\nopen('new.txt', 'w')\n"
    write(home, code)
    write(home, code, "package/train.py")
    write(home, "", "sub/x.txt")
    before = fingerprint(home)
    run = probed(
        home, "--scratch", "copies", *[str(home / "train.py") if word == "ABSOLUTE" else word for word in words]
    )
    assert (run.status, run.err) == (0, "")
    assert run.out == ("package/train.py\n" if "-m" in words else "train.py\n")
    # The copy itself lies in the working directory here, and holds no copy of itself.
    assert {name: state for name, state in fingerprint(home).items() if not name.startswith("copies")} == before
    assert sorted(os.listdir(home / "copies" / "project")) == ["new.txt", "package", "sub", "train.py"]


def test_a_script_from_elsewhere_runs_in_the_copy(tmp_path: Path) -> None:
    home = tmp_path / "project"
    write(home, "text", "input.txt")
    write(tmp_path, "print(open('input.txt').read())\nopen('input.txt', 'w')\n", "tools/train.py")
    run = probed(home, "--scratch", "../copies", "../tools/train.py")
    assert (run.status, run.out, run.err) == (0, "text\n", "")
    assert (home / "input.txt").read_text() == "text"


def test_each_run_gets_a_copy_of_its_own(tmp_path: Path) -> None:
    home = tmp_path / "project"
    write(home, "print(1)\n")
    for _ in range(3):
        assert probed(home, "--scratch", "../copies", "train.py").status == 0
    assert sorted(os.listdir(tmp_path / "copies")) == ["project", "project-2", "project-3"]


def test_large_files_are_linked_unless_they_are_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "project"
    for name in ("set.npy", "model.pt"):
        write(home, "x" * 11, name)
    write(home, "x" * 10, "small.npy")
    os.mkfifo(home / "pipe")
    monkeypatch.chdir(home)
    monkeypatch.setattr(scratch, "LARGE", 10)
    monkeypatch.setattr(scratch, "_shared", lambda _path, _to: False)
    made = Scratch(str(tmp_path / "copies"))
    copy = tmp_path / "copies" / "project"
    assert {name: (copy / name).is_symlink() for name in os.listdir(copy)} == {
        "set.npy": True,
        "model.pt": False,
        "small.npy": False,
    }
    assert made.notes()[1:] == ["too large to copy and only linked to: set.npy"]


def test_paths_are_mapped_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "project"
    write(home, "", "train.py")
    monkeypatch.chdir(home)
    made = Scratch(str(tmp_path / "copies"))
    assert made.mapped(str(home / "train.py")) == f"{made.copy}/train.py"
    assert made.mapped(str(home)) == made.copy
    for path in ("train.py", str(home / "none.py"), f"{home}-other/train.py", str(tmp_path)):
        assert made.mapped(path) == path
    assert made.target(Target(None, "train", ("x",))) == Target(None, "train", ("x",))
    there, back, other = Source(f"{made.copy}/train.py", 3), Source(str(home / "train.py"), 3), Source("/x.py", 1)
    told = made.told(
        Profile(
            layers=(Layer("a", source=there), Layer("b", source=other), Layer("c")),
            operators=(Operator("exp", "a", there),),
            first_nonfinite=FirstNonfinite(1, "forward", "a", source=there),
            replay=Replay(recorded=True, lines=(there, other)),
            places={"step": there},
        )
    )
    assert [layer.source for layer in told.layers] == [back, other, None]
    assert told.operators[0].source == back
    assert told.first_nonfinite is not None
    assert told.first_nonfinite.source == back
    assert told.replay is not None
    assert told.replay.lines == (back, other)
    assert told.places == {"step": back}


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "project"
    write(home, "text", "file.txt")
    monkeypatch.chdir(home)
    with pytest.raises(ScriptError, match=r"--scratch file\.txt/x: Not a directory"):
        Scratch("file.txt/x")
