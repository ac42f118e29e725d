"""Profile, findings and recommendation -> the report for people: the verdict first, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.report.bars import ASCII, BLOCKS
from amp_doctor.report.profile_advice import cost_lines, grounds_lines, operators_lines, snippet_lines
from amp_doctor.report.profile_findings import closing, findings_lines
from amp_doctor.report.profile_layers import layers_lines
from amp_doctor.report.profile_measured import measured_lines, notes_lines
from amp_doctor.report.profile_proof import proof_lines
from amp_doctor.report.profile_replay import replay_lines
from amp_doctor.report.profile_timeline import timeline_lines
from amp_doctor.report.profile_verdict import reservations, verdict
from amp_doctor.report.sheet import Sheet
from amp_doctor.report.text import rendered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding

PARTS = (
    reservations,
    verdict,
    proof_lines,
    findings_lines,
    layers_lines,
    operators_lines,
    replay_lines,
    timeline_lines,
    cost_lines,
    snippet_lines,
    grounds_lines,
    notes_lines,
    measured_lines,
    closing,
)


def to_profile_text(
    profile: Profile,
    findings: Sequence[Finding],
    recommendation: Recommendation,
    *,
    width: int,
    color: bool,
    unicode: bool = True,
) -> str:
    """The whole report in `width` columns; with `unicode` off its bars are drawn in ASCII."""
    sheet = Sheet(profile, findings, recommendation, width, BLOCKS if unicode else ASCII)
    return rendered((line for part in PARTS for line in part(sheet)), width, color)
