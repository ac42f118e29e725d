"""Profile, findings and recommendation -> the probe's JSON, schema 1 (DESIGN section 6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from amp_doctor import __version__
from amp_doctor.diagnosis import recommendation as advice
from amp_doctor.diagnosis import serial
from amp_doctor.report.finding_json import finding_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding
    from amp_doctor.report.joined import Joined

SCHEMA = 1


def to_probe_json(
    profile: Profile,
    findings: Sequence[Finding],
    recommendation: Recommendation,
    lint: Sequence[Joined] | None = None,
    sources: Mapping[str, str] | None = None,
) -> str:
    """One object; `amp-doctor report` reads it back as it reads a profile alone.

    With `lint` it has what the linter found in the same script, too; `sources` are the texts that fixes edit, by path.
    """
    document = {
        "schema": SCHEMA,
        "tool": {"name": "amp-doctor", "version": __version__},
        "profile": serial.to_values(profile),
        "findings": [{**finding_values(finding, {}), "layer": finding.layer} for finding in findings],
        "recommendation": advice.to_values(recommendation),
    }
    if lint is not None:
        document["lint"] = {"findings": [one.values(sources or {}) for one in lint]}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
