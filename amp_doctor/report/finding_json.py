"""Finding -> its JSON values (DESIGN section 6), the same for the linter and the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.catalog import url
from amp_doctor.finding import NOWHERE
from amp_doctor.report.edits import regions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding, Related, Span


def finding_values(finding: Finding, sources: Mapping[str, str]) -> dict[str, Any]:
    """A declared shape, not a dump of our classes; `sources` maps paths to the texts that fixes edit.

    Line and column are null for what the probe has found no line for.
    """
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


def _span(span: Span) -> dict[str, int | None]:
    if span is NOWHERE:
        return dict.fromkeys(("line", "column", "end_line", "end_column"))
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
