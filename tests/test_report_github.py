"""Workflow commands of GitHub Actions."""

from __future__ import annotations

import dataclasses

from amp_doctor.finding import Severity
from amp_doctor.lint.result import InputError, LintReport
from amp_doctor.report.to_github import to_github
from tests.reports import CLIP, REPORT


def test_commands_and_summary() -> None:
    assert to_github(REPORT).splitlines() == [
        (
            "::notice file=explore.ipynb,line=2,endLine=3,title=AMP302 loss-outside-autocast"
            "::explore.ipynb:cell 3:2:1: AMP302 over two lines"
        ),
        (
            "::warning file=src/my layers.py,line=5,endLine=5,col=37,endColumn=41,title=AMP501 constant-beyond-half"
            "::src/my layers.py:5:37: AMP501 -1e9 is -inf in float16: 100%25 of the range, a: b, c"
        ),
        (
            "::error file=train.py,line=9,endLine=9,col=5,endColumn=60,title=AMP201 clip-before-unscale"
            "::train.py:9:5: AMP201 gradients are clipped while still multiplied by the loss scale"
        ),
        "::error file=broken.py,title=amp-doctor::no permission to read it",
        "Found 3 findings (1 error, 1 warning, 1 note) in 3 of 14 files.",
    ]


def test_what_could_end_a_property_or_start_a_command_is_escaped() -> None:
    evil = dataclasses.replace(CLIP, path="a,b:c%\n::error.py", message="one\r\n::error::two")
    [command, _] = to_github(LintReport((evil,), files=1)).splitlines()
    assert "file=a%2Cb%3Ac%25%0A%3A%3Aerror.py,line=" in command
    assert command.endswith("one%0D%0A::error::two")


def test_more_than_github_shows_says_so() -> None:
    ten = LintReport((CLIP,) * 10, files=1)
    assert "at most 10" not in to_github(ten)
    eleven = dataclasses.replace(ten, errors=(InputError("a.py", "gone"),))
    assert "at most 10" in to_github(eleven)
    mixed = (CLIP,) * 9 + (dataclasses.replace(CLIP, severity=Severity.WARNING),) * 9
    assert "at most 10" not in to_github(LintReport(mixed, files=1))
