"""The cache: what is remembered, what makes it forget, and that a broken one does no harm."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amp_doctor.config import Configuration, nearest
from amp_doctor.lint import run
from amp_doctor.lint.cache import FILE
from amp_doctor.lint.run import Outcome, Plan, lint_paths
from tests.invoke import amp_doctor, planted

if TYPE_CHECKING:
    from amp_doctor.lint.analyse import Analysis
    from amp_doctor.lint.project import Project
    from amp_doctor.lint.source import Source


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nearest.cache_clear()
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", planted)
    # Small runs leave the cache alone; so must none of these be one.
    monkeypatch.setattr(run, "SMALL_RUN", 0)
    return folder


def lint(*paths: str, version: str | None = None) -> Outcome:
    said = {} if version is None else {"torch_version": tuple(map(int, version.split(".")))}
    return lint_paths(paths or (".",), Plan(Configuration(said), cache_dir=str(Path(".cache").absolute())))  # type: ignore[arg-type]


def plant(here: Path, **texts: str) -> None:
    for name, text in texts.items():
        (here / f"{name}.py").write_text(text)


TEXTS = {"plain": "x = 1\n", "bad": "# autocast\nbad_201 silent  # noqa: AMP301\n", "other": "AMP301!  # autocast é\n"}


def test_a_second_run_finds_everything_in_the_cache(here: Path) -> None:
    plant(here, **TEXTS)
    first = lint()
    assert (first.cached, first.report.files) == (0, 3)
    assert [f.code for f in first.report.findings] == ["AMP201", "AMP002", "AMP301"]
    second = lint()
    assert second.cached == 3
    assert second.report == first.report
    assert second.reports == first.reports


def test_it_leaves_a_note_for_git_and_for_backups(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    assert sorted(os.listdir(here / ".cache")) == [".gitignore", "CACHEDIR.TAG", FILE]
    assert (here / ".cache" / ".gitignore").read_text() == "*\n"
    assert (here / ".cache" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_a_file_that_changes_is_looked_at_again(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    plant(here, bad="# autocast\ngood\n")
    again = lint()
    assert again.cached == 2
    assert [f.code for f in again.report.findings] == ["AMP301"]


def test_a_gated_file_that_was_only_touched_is_known_by_its_content(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    os.utime(here / "bad.py", ns=(1, 1))
    os.utime(here / "plain.py", ns=(1, 1))
    assert lint().cached == 2
    assert lint().cached == 3


def test_another_torch_version_is_another_result(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    assert lint(version="2.1").cached == 1
    assert lint(version="2.1").cached == 3


def test_settings_that_only_select_do_not_matter(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    chosen = lint_paths(["."], Plan(Configuration({"select": ("AMP301",)}), cache_dir=str(Path(".cache").absolute())))
    assert chosen.cached == 3
    assert [f.code for f in chosen.report.findings] == ["AMP301"]


def test_a_new_module_may_change_what_imports_mean(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    plant(here, new="y = 1\n")
    assert lint().cached == 1


def test_dependencies_are_watched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def analysed(source: Source, project: Project, torch_version: tuple[int, ...] | None = None) -> Analysis:
        from dataclasses import replace

        found = planted(source, project, torch_version)
        return replace(found, dependencies=("library/helper.py",)) if source.path == "bad.py" else found

    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", analysed)
    (here / "library").mkdir()
    helper = here / "library" / "helper.py"
    helper.write_text("x = 1\n")
    plant(here, **TEXTS)
    lint("bad.py", "other.py")
    assert lint("bad.py", "other.py").cached == 2
    os.utime(helper, ns=(1, 1))
    assert lint("bad.py", "other.py").cached == 2
    helper.write_text("x = 2\n")
    assert lint("bad.py", "other.py").cached == 1
    assert lint("bad.py", "other.py").cached == 2
    helper.unlink()
    assert lint("bad.py", "other.py").cached == 1


def test_paths_are_told_from_where_one_stands(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(here, **TEXTS)
    cache = str(Path(".cache").absolute())
    lint_paths([str(here)], Plan(Configuration(), cache_dir=cache))
    monkeypatch.chdir(here.parent)
    again = lint_paths([str(here)], Plan(Configuration(), cache_dir=cache))
    assert again.cached == 3
    assert {f.path for f in again.report.findings} == {"project/bad.py", "project/other.py"}


def test_a_project_that_moved_keeps_what_does_not_depend_on_its_place(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(here, **TEXTS)
    lint()
    moved = here.parent / "moved"
    here.rename(moved)
    monkeypatch.chdir(moved)
    assert lint().cached == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b'{"stamp": 1, "content": 2, "entries": []}',
        b"[" * 100_000,
    ],
)
def test_a_broken_cache_is_ignored_and_replaced(here: Path, content: bytes) -> None:
    plant(here, **TEXTS)
    wanted = lint().report
    (here / ".cache" / FILE).write_bytes(content)
    again = lint()
    assert (again.cached, again.report) == (0, wanted)
    assert lint().cached == 3


def test_entries_that_make_no_sense_are_ignored_one_by_one(here: Path) -> None:
    plant(here, **TEXTS)
    wanted = lint().report
    file = here / ".cache" / FILE
    document = json.loads(file.read_text())
    names = {name.rpartition("/")[2]: name for name in document["entries"]}
    document["entries"][names["plain.py"]] = "no list"
    document["entries"][names["bad.py"]][6] = [[["AMP201"]], 0, []]
    file.write_text(json.dumps(document))
    again = lint()
    assert (again.cached, again.report) == (1, wanted)


def test_a_cache_of_another_version_of_the_tool_is_not_used(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    file = here / ".cache" / FILE
    document = json.loads(file.read_text())
    # The same tool installed anew has other times, but the same content.
    file.write_text(json.dumps(document | {"stamp": "installed anew"}))
    assert lint().cached == 3
    assert json.loads(file.read_text())["stamp"] == document["stamp"]
    file.write_text(json.dumps(document | {"stamp": "other", "content": "other"}))
    assert lint().cached == 0


def test_a_place_that_cannot_be_written_to_does_no_harm(here: Path) -> None:
    plant(here, **TEXTS)
    (here / ".cache").write_text("a file where the directory should be")
    assert [f.code for f in lint().report.findings] == ["AMP201", "AMP002", "AMP301"]


def test_what_may_be_better_next_time_is_tried_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(here, bad="# autocast crash\n")
    (here / "latin.py").write_bytes(b"# caf\xe9\n")
    first = lint()
    assert [f.code for f in first.report.findings] == ["AMP003"]
    assert [error.path for error in first.report.errors] == ["latin.py"]
    again = lint()
    assert (again.cached, again.report) == (1, first.report)

    def dying(*arguments: object) -> object:
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    plant(here, bad="# autocast\n")
    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", dying)
    # The modules are loaded in this process, which must survive.
    monkeypatch.setattr("amp_doctor.lint.parallel.warm_up", lambda: None)
    assert [f.code for f in lint().report.findings] == ["AMP003"]
    assert lint().cached == 0


def test_files_that_are_gone_are_forgotten_others_kept(here: Path) -> None:
    plant(here, **TEXTS)
    lint()
    (here / "bad.py").unlink()
    plant(here, new="y = 1\n")
    lint("new.py")
    names = {name.rpartition("/")[2] for name in json.loads((here / ".cache" / FILE).read_text())["entries"]}
    assert names == {"plain.py", "other.py", "new.py"}


def test_the_command_line_can_move_it_and_switch_it_off(here: Path) -> None:
    plant(here, **TEXTS)
    amp_doctor("lint", "--no-cache")
    assert not (here / ".amp_doctor_cache").exists()
    amp_doctor("lint", "--cache-dir", "elsewhere/deep")
    assert (here / "elsewhere" / "deep" / FILE).is_file()
    (here / ".git").mkdir()
    amp_doctor("lint")
    assert (here / ".amp_doctor_cache" / FILE).is_file()
    assert "3 of 3 reports were found in" in amp_doctor("lint", "--verbose").err


def test_small_runs_without_mixed_precision_do_not_touch_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SMALL_RUN", 64_000)
    plant(here, plain="x = 1\n")
    assert lint().cached == 0
    assert not (here / ".cache").exists()
    plant(here, bad="# autocast\nbad_201\n")
    assert lint().cached == 0
    assert lint().cached == 1
