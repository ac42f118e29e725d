"""Fixes: chosen without overlaps, proved by a second analysis, written in one step, shown as a diff."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from amp_doctor.config import nearest
from amp_doctor.finding import Applicability, Edit, Finding, Fix, Severity, Span
from amp_doctor.lint.examine import examine
from amp_doctor.lint.fixes import Rules, mend, without_overlaps
from amp_doctor.lint.result import FileReport
from amp_doctor.lint.settle import settled
from amp_doctor.lint.source import Source, parse_source
from tests.invoke import NAMES, Done, amp_doctor, planted

if TYPE_CHECKING:
    from pathlib import Path

ON = frozenset({*NAMES, "AMP002"})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nearest.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", planted)
    return tmp_path


def lint(*arguments: str, stdin: bytes = b"") -> Done:
    return amp_doctor("lint", "--isolated", "--no-cache", *arguments, stdin=stdin)


def check(source: Source) -> FileReport:
    return examine(source.raw, source.path, None, None)


def mended(code: str, unsafe: bool = True) -> tuple[str, int]:
    from amp_doctor.lint.suppress import settle

    source = Source.from_text("a.py", code)
    report = check(source)
    findings = settle("a.py", report.pragmas, report.findings, ON.__contains__)
    after, count = mend(source, report, findings, Rules(unsafe, ON, check))
    return after.code, count


def test_safe_and_unsafe_fixes() -> None:
    code = "soft_201\nbad_301\n"
    assert mended(code, unsafe=False) == ("good\nbad_301\n", 1)
    assert mended(code) == ("good\ngood\n", 2)


def test_fixes_that_do_no_good_are_dropped_and_the_others_applied() -> None:
    assert mended("worse_201\n") == ("worse_201\n", 0)
    assert mended("stuck_201\n") == ("stuck_201\n", 0)
    assert mended("wreck_201\n") == ("wreck_201\n", 0)
    assert mended("bad_101\nwreck_201\nbad_301\nworse_201\n") == ("good\nwreck_201\ngood\nworse_201\n", 2)


def test_suppressed_findings_are_not_fixed_and_their_comment_stays() -> None:
    code = "bad_201  # noqa: AMP201\nbad_301  # noqa: AMP301, AMP101\n"
    assert mended(code) == ("bad_201  # noqa: AMP201\nbad_301  # noqa: AMP301\n", 1)


def test_mending_twice_changes_nothing() -> None:
    once, _ = mended("bad_101 bad_201\nworse_201\nx = 1  # noqa: AMP301\n")
    assert mended(once) == (once, 0)


def test_offsets_are_bytes() -> None:
    assert mended("'é数' + bad_201 + 'ü'\n") == ("'é数' + good + 'ü'\n", 1)


def planned(start: int, end: int, code: str = "AMP201") -> Finding:
    fix = Fix(Applicability.SAFE, "", (Edit(start, end, "x"),))
    return Finding(code, NAMES[code], Severity.ERROR, "", "a.py", Span(1, start + 1, 1, end + 1), fix=fix)


@pytest.mark.parametrize(
    ("spans", "chosen"),
    [
        ([(0, 2), (2, 4)], [(0, 2), (2, 4)]),
        ([(1, 3), (0, 2)], [(0, 2)]),
        ([(0, 9), (3, 4), (9, 9)], [(0, 9), (9, 9)]),
        ([(5, 5), (5, 5)], [(5, 5)]),
        ([(5, 5), (5, 7)], [(5, 5)]),
        ([(4, 6), (5, 5)], [(4, 6)]),
    ],
)
def test_of_two_that_overlap_the_first_is_chosen(spans: list[tuple[int, int]], chosen: list[tuple[int, int]]) -> None:
    found = without_overlaps([planned(*span) for span in spans])
    assert [(edit.start, edit.end) for f in found if f.fix for edit in f.fix.edits] == chosen


def test_a_comment_used_only_by_the_analysis_of_another_file_survives() -> None:
    source = Source.from_text("a.py", "y = 1  # noqa: AMP202\nsoft_201\n")
    report = check(source)
    foreign = Finding("AMP202", "unscaled-backward", Severity.ERROR, "", "a.py", Span(1, 1, 1, 6))
    other = FileReport("b.py", (foreign,))
    from amp_doctor.config import Configuration
    from amp_doctor.lint.discover import Target

    configuration = Configuration(isolated=True)
    settings = configuration.settings_for("/")
    targets = [Target(f"/{name}", name, settings, 0, 0) for name in ("a.py", "b.py")]
    findings = settled([report, other], targets, configuration)
    assert [(f.code, f.suppressed) for f in findings] == [("AMP202", True), ("AMP201", False)]
    after, count = mend(source, report, findings, Rules(unsafe=False, enabled=ON | {"AMP202"}, check=check))
    assert (after.code, count) == ("y = 1  # noqa: AMP202\ngood\n", 1)


def test_fix_writes_and_reports_what_is_left(here: Path) -> None:
    file = here / "a.py"
    file.write_bytes(b"\xef\xbb\xbf# autocast\r\nsoft_201\r\nbad_301\r\n")
    file.chmod(0o750)
    done = lint("a.py", "--fix", "--output-format", "concise")
    assert done == Done(1, "a.py:3:1: AMP301 [warning] planted bad_301\n", "")
    assert file.read_bytes() == b"\xef\xbb\xbf# autocast\r\ngood\r\nbad_301\r\n"
    assert file.stat().st_mode & 0o777 == 0o750
    assert os.listdir(here) == ["a.py"]
    assert lint("a.py", "--fix", "--unsafe-fixes").status == 0
    assert file.read_bytes().endswith(b"good\r\ngood\r\n")


def test_fix_through_a_link_changes_the_file_it_points_to(here: Path) -> None:
    (here / "real").write_text("# autocast\nsoft_201\n")
    (here / "a.py").symlink_to("real")
    assert lint("a.py", "--fix").status == 0
    assert (here / "a.py").is_symlink()
    assert (here / "real").read_text() == "# autocast\ngood\n"


def test_a_file_that_may_not_be_written_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.py"):
        (here / name).write_text("# autocast\nsoft_201\n")
    access = os.access
    # Root may write everything, so the system is asked about in its place.
    monkeypatch.setattr(
        "amp_doctor.lint.fixes.os.access", lambda file, mode: file.name != "a.py" and access(file, mode)
    )
    done = lint("--fix", "--output-format", "concise")
    assert done.status == 2
    assert "a.py: cannot be written: no permission to write it" in done.out
    assert (here / "a.py").read_text() == "# autocast\nsoft_201\n"
    assert (here / "b.py").read_text() == "# autocast\ngood\n"


def test_diff_shows_and_writes_nothing(here: Path) -> None:
    (here / "a.py").write_text("# autocast\nsoft_201\nbad_301")
    done = lint("--diff")
    assert done.status == 1
    assert (
        done.out
        == "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n # autocast\n-soft_201\n+good\n bad_301\n\\ No newline at end of file\n"
    )
    assert (here / "a.py").read_text() == "# autocast\nsoft_201\nbad_301"
    assert "-bad_301\n" in lint("--diff", "--unsafe-fixes").out
    assert lint("--diff", "--exit-zero").status == 0
    (here / "a.py").write_text("# autocast\nbad_301")
    assert lint("--diff") == Done(0, "", "amp-doctor: would fix 0 of 1 findings\n")


def test_stdin_is_fixed_to_stdout() -> None:
    done = lint(
        "-",
        "--fix",
        "--stdin-filename",
        "x/y.py",
        "--output-format",
        "concise",
        stdin=b"# autocast\nsoft_201\nAMP301!\n",
    )
    assert done == Done(1, "# autocast\ngood\nAMP301!\n", "x/y.py:3:1: AMP301 [warning] planted AMP301!\n")


def test_notebooks_are_fixed_cell_by_cell(here: Path) -> None:
    def document(line: str) -> str:
        cells = [
            {"cell_type": "markdown", "metadata": {}, "source": "soft_201"},
            {"cell_type": "code", "metadata": {}, "outputs": [{"text": "é"}], "source": ["!ls\n", f"{line}\n"]},
        ]
        return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}, indent=1, ensure_ascii=False)

    file = here / "n.ipynb"
    file.write_text(document("soft_201  # autocast"))
    shown = lint("--output-format", "json")
    found = json.loads(shown.out)["findings"]
    assert [(f["cell"], f["line"], f["column"]) for f in found] == [(2, 2, 1)]
    assert found[0]["fix"]["edits"] == [
        {"start_line": 2, "start_column": 1, "end_line": 2, "end_column": 9, "text": "good"}
    ]
    assert lint("--fix").status == 0
    assert file.read_text() == document("good  # autocast")


def test_a_file_that_changes_meanwhile_is_left_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_doctor.lint import fixes

    file = here / "a.py"
    file.write_text("# autocast\nsoft_201\n")
    write_all = fixes.write_all

    def late(mended: tuple[fixes.Mended, ...]) -> object:
        file.write_text("# autocast\nsoft_201  # edited\n")
        return write_all(mended)

    monkeypatch.setattr("amp_doctor.lint.fixes.write_all", late)
    done = lint("--fix")
    assert done.status == 2
    assert "changed while it was being fixed, so it was left alone" in done.out
    assert file.read_text() == "# autocast\nsoft_201  # edited\n"


def test_parse_source_of_a_mended_file_is_what_was_checked() -> None:
    source = parse_source("# coding: latin-1\nsoft_201 # é\n".encode("latin-1"), "a.py")
    after, count = mend(source, check(source), check(source).findings, Rules(unsafe=False, enabled=ON, check=check))
    assert count == 1
    assert after.raw == "# coding: latin-1\ngood # é\n".encode("latin-1")
