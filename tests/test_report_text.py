"""The report for people, and the plain formats beside it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amp_doctor import catalog
from amp_doctor.finding import Related, Span
from amp_doctor.lint.result import LintReport
from amp_doctor.report.statistics import to_statistics
from amp_doctor.report.text import cells
from amp_doctor.report.to_concise import to_concise
from amp_doctor.report.to_explain import to_explain
from amp_doctor.report.to_rules import rules_json, rules_text
from amp_doctor.report.to_text import to_text
from tests.conftest import ROOT
from tests.reports import CLIP, CONSTANT, HIDDEN, NOTE, REPORT, SOURCES, SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding


def text(*findings: Finding, width: int = 100, sources: Mapping[str, str] = SOURCES, verbose: bool = False) -> str:
    return to_text(LintReport(findings, files=1), sources, SUMMARIES, width=width, verbose=verbose)


def test_a_finding_shows_the_trail_the_fault_and_what_to_do() -> None:
    assert (
        text(CLIP)
        == """\
train.py:9:5: error AMP201 clip-before-unscale [fixable]
  gradients are clipped while still multiplied by the loss scale

  8 |     scaler.scale(loss).backward()
    |     ----------------------------- the gradients carry the loss scale from here on
  9 |     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
 10 |     scaler.step(optimizer)

  rule: Gradients are clipped while they still carry the loss scale.
  fix:  insert scaler.unscale_(optimizer) before the clipping (--fix --unsafe-fixes)
  more: amp-doctor explain AMP201

Found 1 finding (1 error) in 1 file.
1 can be fixed with --fix --unsafe-fixes.
"""
    )


def test_a_trail_through_other_files_names_them() -> None:
    assert text(CONSTANT).splitlines()[3:12] == [
        "   > train.py",
        " 4 | for x, y in loader:",
        ' 5 |     with torch.autocast("cuda", dtype=torch.float16):',
        "   |          ------------------------------------------- the model runs under FP16 autocast",
        "   > gone.py",
        " 3 | through a file that is not at hand",
        "   > src/my layers.py",
        " 4 | def mask(scores, padding):",
        " 5 |     return scores.masked_fill(padding, -1e9)  # Größe, 数",
    ]


def test_the_carets_stand_below_the_fault_after_a_tab() -> None:
    lines = text(CONSTANT).splitlines()
    marks = next(line for line in lines if "^" in line)
    source = next(line for line in lines if "-1e9)" in line)
    assert source[marks.index("^") : marks.rindex("^") + 1] == "-1e9"


def test_a_trail_that_ends_at_the_fault_is_told_beside_its_carets() -> None:
    ending = dataclasses.replace(CLIP, related=(*CLIP.related, Related(CLIP.path, CLIP.span, "clipped")))
    marks = [line for line in text(ending).splitlines() if "^" in line or "---" in line]
    assert len(marks) == 2
    assert marks[1].endswith("^^ clipped")


def test_suppressed_findings_are_not_shown() -> None:
    assert text(HIDDEN) == "Nothing was found wrong in 1 file.\n"
    assert "1 finding suppressed by comments." in text(HIDDEN, verbose=True)


def test_files_that_could_not_be_read_are_named() -> None:
    shown = to_text(REPORT, SOURCES, SUMMARIES)
    assert "error: broken.py: no permission to read it\n" in shown
    assert "Found 3 findings (1 error, 1 warning, 1 note) in 3 of 14 files." in shown


def test_a_notebook_is_told_by_cell() -> None:
    assert text(NOTE).startswith("explore.ipynb:cell 3:2:1: note AMP302 loss-outside-autocast\n")


def test_a_rule_is_introduced_once() -> None:
    shown = text(CLIP, dataclasses.replace(CLIP, span=Span(10, 5, 10, 27)))
    assert shown.count("amp-doctor explain AMP201") == 1
    assert shown.count("fix: ") == 2


@pytest.mark.parametrize("width", [30, 50, 72, 100, 160])
def test_frames_keep_to_the_width(width: int) -> None:
    long = "x = model(" + ", ".join(f"argument_{n}" for n in range(40)) + ")\n"
    span = Span(1, long.index("argument_30") + 1, 1, long.index("argument_30") + 12)
    far = dataclasses.replace(
        CLIP,
        span=span,
        related=(Related("train.py", dataclasses.replace(span, end_column=span.end_column - 1), "a step " * 9),),
        fix=None,
    )
    shown = text(far, width=width, sources={"train.py": long}).splitlines()
    framed = [line for line in shown if " | " in line]
    assert framed
    assert max(cells(line) for line in framed) <= max(width, 31)
    source, marks = framed[0], framed[1]
    assert source[marks.index("-") : marks.rindex("-") + 1] == "argument_3"


def test_control_characters_of_a_source_do_not_reach_the_terminal() -> None:
    evil = dataclasses.replace(NOTE, cell=None, path="evil.py", span=Span(1, 1, 1, 2))
    shown = text(evil, sources={"evil.py": "x = '\x1b[2J\x07\u202e'\n"})
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("span", [Span(0, 0, 0, 0), Span(99, 1, 99, 2), Span(9, 500, 9, 501), Span(8, 5, 30, 1)])
def test_a_place_outside_the_text_does_not_break_the_report(span: Span) -> None:
    assert "AMP201" in text(dataclasses.replace(CLIP, span=span))


def test_colour_changes_the_look_only() -> None:
    import re

    colored = to_text(REPORT, SOURCES, SUMMARIES, color=True)
    assert "\x1b[" in colored
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in bare.splitlines()] == to_text(REPORT, SOURCES, SUMMARIES).splitlines()


def test_plain_reports_do_not_load_rich() -> None:
    code = (
        "import sys; from tests.reports import *; from amp_doctor.report.to_text import to_text\n"
        "to_text(REPORT, SOURCES, SUMMARIES, color={})\n"
        "print(any(name.startswith('rich.') for name in sys.modules))"
    )
    for color, loaded in ((False, "False"), (True, "True")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(color)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == loaded


def test_the_environment_does_not_change_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    before = to_text(REPORT, SOURCES, SUMMARIES, color=True)
    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "20", "FORCE_COLOR": "1"}.items():
        monkeypatch.setitem(os.environ, name, value)
    assert to_text(REPORT, SOURCES, SUMMARIES, color=True) == before


def test_concise() -> None:
    assert (
        to_concise(REPORT)
        == """\
explore.ipynb:cell 3:2:1: AMP302 [note] over two lines
src/my layers.py:5:37: AMP501 [warning] -1e9 is -inf in float16: 100% of the range, a: b, c
train.py:9:5: AMP201 [error] gradients are clipped while still multiplied by the loss scale
broken.py: no permission to read it
"""
    )
    assert to_concise(LintReport(files=3)) == ""


def test_statistics_count_the_most_frequent_first() -> None:
    lines = to_statistics(LintReport((CLIP, NOTE, NOTE, HIDDEN), files=2)).splitlines()
    assert lines == [
        "2  AMP302  note          loss-outside-autocast",
        "1  AMP201  error    [*]  clip-before-unscale",
        "[*] can be fixed, at least in part, with --fix or --fix --unsafe-fixes.",
        "Found 3 findings (1 error, 2 notes) in 2 files.",
    ]


def test_explain_prints_the_page() -> None:
    page = catalog.page("clip-before-unscale")
    shown = to_explain(page)
    assert shown.startswith("# AMP201 · clip-before-unscale\n")
    assert "Severity **error**" in shown
    assert "Wrong:\n\n```python\n" in shown
    assert shown.endswith(page.url + "\n")
    assert "AMP201" in to_explain(page, width=60, color=True)


def test_rules_are_listed() -> None:
    import json

    pages = [catalog.page(code) for code in ("AMP001", "AMP201")]
    assert "AMP201  error    clip-before-unscale  [unsafe fix]\n" in rules_text(pages)
    listed = json.loads(rules_json(pages))
    assert [(rule["code"], rule["fix"]) for rule in listed] == [("AMP001", "none"), ("AMP201", "unsafe")]
