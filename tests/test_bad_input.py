"""Input that goes wrong: a clear message with the path, the other files still checked, the exit status of the contract."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from amp_doctor.config import nearest
from amp_doctor.lint import parallel, workers
from amp_doctor.lint.workers import Died, in_workers
from tests.invoke import Done, amp_doctor, planted

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "import torch\nwith torch.autocast('cuda'):\n    pass\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nearest.cache_clear()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lint(*arguments: str) -> Done:
    return amp_doctor("lint", "--isolated", "--no-cache", "--output-format", "concise", *arguments)


def found(done: Done) -> list[tuple[str, str]]:
    """Path and code of everything in a concise report."""
    return [(line.split(":")[0], line.split(": ")[1].split(" ")[0]) for line in done.out.splitlines()]


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("torch.autocast('cuda'\n", 1, "'(' was never closed"),
        ("x = 1\nautocast = = 2\n", 2, "invalid syntax"),
        ("# no mixed precision at all\ndef f(:\n", 2, "invalid syntax"),
        ("<<<<<<< HEAD\nautocast\n=======\n", 1, "invalid syntax"),
        ("print 'autocast'\n", 1, "Missing parentheses"),
        ("if autocast:\nx\n", 2, "expected an indented block"),
        ("autocast = '\0'\n", 1, "null bytes"),
    ],
)
def test_a_file_that_does_not_parse_is_a_finding(here: Path, code: str, line: int, words: str) -> None:
    (here / "a.py").write_text(code)
    (here / "b.py").write_text(GOOD)
    done = lint(".")
    assert done.status == 1
    assert done.out.startswith(f"a.py:{line}:")
    assert "AMP001 [error] this file does not parse: " in done.out
    assert words in done.out
    assert done.out.count("\n") == 1


def test_files_that_cannot_be_read_end_with_2_and_the_others_are_checked(here: Path) -> None:
    (here / "broken.py").write_text("autocast(\n")
    (here / "latin.py").write_bytes(b"# caf\xe9\n")
    (here / "utf16.py").write_bytes("autocast\n".encode("utf-16"))
    (here / "dead.py").symlink_to("nowhere.py")
    (here / "n.ipynb").write_text("{")
    (here / "empty.py").write_text("")
    (here / "empty.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    done = lint(".", "gone.py")
    assert done.status == 2
    assert found(done)[0] == ("broken.py", "AMP001")
    assert done.out.splitlines()[1:] == [
        "dead.py: a symbolic link that leads nowhere",
        "gone.py: no such file or directory",
        "latin.py: is not UTF-8: line 1 has the byte 0xe9 (AMP004)",
        "n.ipynb: is not a notebook: invalid JSON at line 1, Expecting property name enclosed in double quotes (AMP004)",
        "utf16.py: is UTF-16; Python reads UTF-8, so save it as that (AMP004)",
    ]
    document = json.loads(amp_doctor("lint", "--isolated", "--no-cache", "--output-format", "json").out)
    assert [error["path"] for error in document["errors"]] == ["dead.py", "latin.py", "n.ipynb", "utf16.py"]
    assert document["files"] == 6
    assert lint("--exit-zero").status == 2
    assert lint("--ignore", "AMP004", "latin.py").status == 0


def test_a_file_without_permission_or_gone_meanwhile(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (here / name).write_text("autocast(\n")
    opened = os.open

    def refused(file: str, *rest: int) -> int:
        # Root, who may run the tests, is refused nothing, and nobody can delete a file at the right moment.
        if str(file).endswith("a.py"):
            raise PermissionError(13, "Permission denied")
        if str(file).endswith("b.py"):
            raise FileNotFoundError(2, "No such file or directory")
        return opened(file, *rest)

    monkeypatch.setattr("amp_doctor.lint.files.os.open", refused)
    done = lint(".")
    assert done.status == 2
    assert found(done)[0] == ("c.py", "AMP001")
    assert done.out.splitlines()[1:] == [
        "a.py: no permission to read it (AMP004)",
        "b.py: no such file; it vanished meanwhile (AMP004)",
    ]


@pytest.mark.parametrize(
    "expression",
    ["(" * 1000 + "1" + ")" * 1000, "[" * 5000 + "]" * 5000, "f(" * 300 + ")" * 300],
)
def test_brackets_nested_too_deeply_do_not_parse(here: Path, expression: str) -> None:
    (here / "a.py").write_text(f"# autocast\nx = {expression}\n")
    (here / "b.py").write_text("autocast(\n")
    assert found(lint(".")) == [("a.py", "AMP001"), ("b.py", "AMP001")]


@pytest.mark.parametrize(
    "code",
    [
        "x = " + "-" * 300 + "1\n",
        "x = " + " + ".join(["1"] * 1000) + "\n",
        "x = a" + ".b" * 500 + "\n",
        "if a: pass\n" + "elif b: pass\n" * 2000,
        "".join(" " * depth + "if a:\n" for depth in range(95)) + " " * 95 + "pass\n",
    ],
)
def test_code_that_is_nested_deeply_is_checked(here: Path, code: str) -> None:
    (here / "a.py").write_text("# autocast\n" + code)
    assert lint(".") == Done(0, "", "")


def test_a_crash_is_a_finding_on_its_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", planted)
    (here / "a.py").write_text("# autocast crash  # noqa: AMP201\n")
    (here / "b.py").write_text("AMP201!  # autocast\n")
    done = lint(".")
    assert done.status == 1
    assert done.out.startswith(
        "a.py:1:1: AMP003 [warning] the analysis of this file failed, it was not checked: "
        "ZeroDivisionError: planted (amp_doctor/lint/examine.py:"
    )
    assert found(done) == [("a.py", "AMP003"), ("b.py", "AMP201")]
    assert lint("--fail-on", "error", "a.py").status == 0


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_process_that_dies_costs_its_file_only(here: Path, monkeypatch: pytest.MonkeyPatch, jobs: str) -> None:
    def dying(source: object, *rest: object) -> object:
        if source.path == "b.py":  # type: ignore[attr-defined]
            faulthandler.disable()
            ctypes.string_at(0)
        return planted(source, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", dying)
    for name in ("a.py", "b.py", "c.py", "d.py"):
        (here / name).write_text("AMP201!  # autocast\n")
    done = lint(".", "--jobs", jobs)
    assert found(done) == [("a.py", "AMP201"), ("b.py", "AMP003"), ("c.py", "AMP201"), ("d.py", "AMP201")]
    assert "the parser ran out of stack, it is nested too deeply" in done.out


def test_a_file_that_takes_too_long_is_given_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(source: object, *rest: object) -> object:
        if source.path == "b.py":  # type: ignore[attr-defined]
            while True:
                pass
        return planted(source, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", endless)
    monkeypatch.setattr(parallel, "patience", lambda _: 1.0)
    for name in ("a.py", "b.py", "c.py"):
        (here / name).write_text("AMP201!  # autocast\n")
    done = lint(".", "--jobs", "1")
    assert found(done) == [("a.py", "AMP201"), ("b.py", "AMP003"), ("c.py", "AMP201")]
    assert "it took more than 1 seconds" in done.out


def test_a_task_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE", 1)

    def work(task: int) -> int:
        if task == 1:
            signal.pause()
        return task

    results = dict(in_workers([0, 1, 2], work, 1, lambda task: 0.2 if task == 1 else 60.0))
    assert results == {0: 0, 1: Died("it did not come to an end"), 2: 2}


def test_results_of_workers_are_all_there_whatever_their_size() -> None:
    def work(task: int) -> str:
        if task == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return str(task) * task * 10_000

    results = dict(in_workers(list(range(12)), work, 3, lambda _: 60.0))
    assert sorted(results) == list(range(12))
    assert results[11] == "11" * 110_000
    assert results[5] == Died("the process was ended by SIGKILL, perhaps for want of memory")


def test_without_fork_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "can_fork", lambda: False)
    assert list(in_workers([3, 4], lambda task: task * 2, 2, lambda _: 1.0)) == [(0, 6), (1, 8)]


def test_workers_end_when_nobody_wants_more_results() -> None:
    results = in_workers(list(range(50)), lambda _: os.getpid(), 2, lambda _: 60.0)
    pid = next(results)[1]
    results.close()  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_linting_never_runs_what_it_reads(here: Path) -> None:
    code = "import os, torch\nos.mkdir('ran')\nwith torch.autocast('cuda'):\n    pass\n"
    (here / "a.py").write_text(code)
    (here / "torch.py").write_text("open('imported', 'w')\n")
    (here / "sitecustomize.py").write_text("open('imported', 'w')\n")
    lint(".")
    assert sorted(os.listdir(here)) == ["a.py", "sitecustomize.py", "torch.py"]


def test_names_that_are_not_text_are_linted(here: Path) -> None:
    if sys.platform == "darwin":
        return  # its file systems have no such names
    with open(os.fsencode(here) + b"/caf\xe9.py", "w") as file:  # noqa: PTH123
        file.write("autocast(\n")
    done = lint(".")
    assert done.status == 1
    assert "AMP001" in done.out
    assert amp_doctor("lint", "--output-format", "json").status == 1


def test_a_file_that_is_too_large_to_analyse_is_told_and_the_others_are_checked(here: Path) -> None:
    (here / "huge.py").write_text("import torch\n" + "".join(f"v{n} = torch.autocast('cuda')\n" for n in range(60_000)))
    (here / "a.py").write_text("x.backward(\nautocast\n")
    done = lint(".")
    assert done.status == 2
    assert "huge.py: too large to analyse: 1.9 MB" in done.out
    assert "a.py:1:11: AMP001" in done.out
