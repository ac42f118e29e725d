"""LintReport -> JSON, schema 1 (DESIGN section 6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from amp_doctor import __version__
from amp_doctor.report.finding_json import finding_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.lint.result import LintReport

SCHEMA = 1


def to_json(report: LintReport, sources: Mapping[str, str]) -> str:
    """Every finding, the suppressed ones too, and what could not be read."""
    document = {
        "schema": SCHEMA,
        "tool": {"name": "amp-doctor", "version": __version__},
        "files": report.files,
        "findings": [finding_values(finding, sources) for finding in report.findings],
        "errors": [{"path": error.path, "message": error.message} for error in report.errors],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
