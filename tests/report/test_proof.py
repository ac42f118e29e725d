"""What the report for people says about a recommendation that was tried."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from amp_doctor.diagnosis.recommendation import Run, Verified
from amp_doctor.report.text import cells
from amp_doctor.report.to_profile_text import to_profile_text
from tests.report.samples import ADVICE, SICK

RUNS = (
    Run("float32", (2.0, 1.0), 0, 0.0, 1.04, 2),
    Run("as recommended (float16, init_scale 1024), emulated", (2.0, nan), 12, 0.25, 10.0, 2),
    Run("as recommended (bfloat16)", (), 0, None, 0.0, 0, "RuntimeError: no"),
)


def proof(verified: Verified | None, width: int = 80) -> list[str]:
    text = to_profile_text(SICK, (), replace(ADVICE, verified=verified), width=width, color=False)
    return text.partition("\nProof\n")[2].partition("\n\n")[0].splitlines()


def test_nothing_is_said_where_nothing_was_tried() -> None:
    assert proof(None) == []


def test_runs_stand_side_by_side() -> None:
    told = proof(Verified("verified", 20, RUNS, "the numbers"))
    assert told == [
        "  Verified by a run of 20 steps.",
        "  the numbers",
        "  loss at the end  skipped  lost  seconds  run",
        "                1        0     0      1.0  float32",
        "              nan       12   25%     10.0  as recommended (float16, init_scale",
        "                                           1024), emulated",
        "           failed        0     -      0.0  as recommended (bfloat16)",
    ]


@pytest.mark.parametrize(
    ("verified", "first"),
    [
        (Verified("refuted", 20, RUNS, "why", "bfloat16"), "  Refuted by a run of 20 steps, and revised to bfloat16."),
        (Verified("inconclusive", 0, (), "why"), "  Nothing was verified."),
        (Verified("refuted", 1, RUNS, "why"), "  Refuted by a run of 1 step."),
    ],
)
def test_the_verdict_on_the_verdict(verified: Verified, first: str) -> None:
    assert proof(verified)[0] == first


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_keeps_to_the_width(width: int) -> None:
    long = Verified("inconclusive", 20, RUNS, "a reason of many words, " * 20)
    most = max(map(cells, proof(long, width)))
    assert most <= max(width, 67)  # the table needs 43 columns before the words of a run
