"""LintReport -> JSON, schema 1 (DESIGN section 6): a declared shape, not a dump of our classes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from amp_doctor import __version__
from amp_doctor.catalog import url
from amp_doctor.report.edits import regions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding, Related, Span
    from amp_doctor.lint.result import LintReport

SCHEMA = 1


def to_json(report: LintReport, sources: Mapping[str, str]) -> str:
    """Every finding, the suppressed ones too, and what could not be read."""
    document = {
        "schema": SCHEMA,
        "tool": {"name": "amp-doctor", "version": __version__},
        "files": report.files,
        "findings": [_finding(finding, sources) for finding in report.findings],
        "errors": [{"path": error.path, "message": error.message} for error in report.errors],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _finding(finding: Finding, sources: Mapping[str, str]) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "message": finding.message,
        "path": finding.path,
        **_span(finding.span),
        "cell": finding.cell,
        "related": [_related(step) for step in finding.related],
        "fix": _fix(finding, sources),
        "suppressed": finding.suppressed,
        "url": url(finding.code),
    }


def _span(span: Span) -> dict[str, int]:
    return {
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _related(step: Related) -> dict[str, Any]:
    return {
        "path": step.path,
        "line": step.span.line,
        "column": step.span.column,
        "message": step.message,
        "cell": step.cell,
    }


def _fix(finding: Finding, sources: Mapping[str, str]) -> dict[str, Any] | None:
    if finding.fix is None:
        return None
    return {
        "applicability": finding.fix.applicability.value,
        "message": finding.fix.message,
        "edits": [
            {
                "start_line": region.start_line,
                "start_column": region.start_column,
                "end_line": region.end_line,
                "end_column": region.end_column,
                "text": region.text,
            }
            for region in regions(finding, sources)
        ],
    }
