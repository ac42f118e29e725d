"""LintReport -> SARIF 2.1.0 for code scanning: the trail is a code flow, the fix a replacement, the page the help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from amp_doctor import __version__
from amp_doctor.finding import NOWHERE
from amp_doctor.report.edits import regions
from amp_doctor.report.fingerprints import fingerprints
from amp_doctor.report.sarif_rules import sarif_rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.catalog import Page
    from amp_doctor.finding import Finding, Span
    from amp_doctor.lint.result import InputError, LintReport

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# What GitHub keeps of one thread flow.
LONGEST_FLOW = 1000


def to_sarif(report: LintReport, sources: Mapping[str, str], pages: Mapping[str, Page]) -> str:
    """One run; `pages` has at least the pages of the codes that were found."""
    codes = sorted({*pages, *(finding.code for finding in report.findings)})
    prints = fingerprints(report.findings, sources)
    results = [
        _result(finding, sources, codes.index(finding.code), fingerprint)
        for finding, fingerprint in zip(report.findings, prints, strict=True)
    ]
    names = {finding.code: finding.name for finding in report.findings}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "amp-doctor",
                "version": __version__,
                "semanticVersion": __version__,
                "informationUri": "https://github.com/amp-doctor/amp-doctor",
                "rules": [sarif_rule(code, names.get(code, code), pages.get(code)) for code in codes],
            }
        },
        "automationDetails": {"id": "amp-doctor/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.errors,
                "toolExecutionNotifications": [_notification(error) for error in report.errors],
            }
        ],
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _result(finding: Finding, sources: Mapping[str, str], index: int, fingerprint: str) -> dict[str, Any]:
    here = _location(finding.path, finding.span)
    if finding.layer:
        here["logicalLocations"] = [{"fullyQualifiedName": finding.layer, "kind": "module"}]
    steps = [
        _location(step.path, step.span) | {"message": {"text": step.message}}
        for step in finding.related[-(LONGEST_FLOW - 1) :]
    ]
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity.value,
        "message": {"text": finding.message},
        "locations": [here],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        # An empty list says that the result is not suppressed; leaving it out would say that nobody knows.
        "suppressions": [{"kind": "inSource"}] if finding.suppressed else [],
        "properties": {"confidence": finding.confidence.value},
    }
    if steps:
        flow = [*steps, here | {"message": {"text": finding.message}}]
        result["relatedLocations"] = [{"id": number, **step} for number, step in enumerate(steps, 1)]
        result["codeFlows"] = [{"threadFlows": [{"locations": [{"location": step} for step in flow]}]}]
    if finding.cell is not None:
        # Lines are those of the cell; an edit of the notebook's JSON cannot be told in them.
        result["properties"]["cell"] = finding.cell
    elif fix := _fix(finding, sources):
        result["fixes"] = [fix]
    return result


def _location(path: str, span: Span) -> dict[str, Any]:
    if span is NOWHERE:
        return {"physicalLocation": {"artifactLocation": _artifact(path)}}
    if (span.line, span.column) == (span.end_line, span.end_column):  # of a run only the line is known
        region = {"startLine": span.line}
        return {"physicalLocation": {"artifactLocation": _artifact(path), "region": region}}
    region = {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line,
        "endColumn": span.end_column,
    }
    return {"physicalLocation": {"artifactLocation": _artifact(path), "region": region}}


def _artifact(path: str) -> dict[str, str]:
    from urllib.parse import quote

    uri = quote(path.replace("\\", "/"), safe="/")
    return {"uri": f"file://{uri}"} if uri.startswith("/") else {"uri": uri, "uriBaseId": "%SRCROOT%"}


def _fix(finding: Finding, sources: Mapping[str, str]) -> dict[str, Any] | None:
    replacements = [
        {
            "deletedRegion": {
                "startLine": region.start_line,
                "startColumn": region.start_column,
                "endLine": region.end_line,
                "endColumn": region.end_column,
            },
            "insertedContent": {"text": region.text},
        }
        for region in regions(finding, sources)
    ]
    if finding.fix is None or not replacements:
        return None
    return {
        "description": {"text": f"{finding.fix.message} ({finding.fix.applicability})"},
        "artifactChanges": [{"artifactLocation": _artifact(finding.path), "replacements": replacements}],
    }


def _notification(error: InputError) -> dict[str, Any]:
    return {
        "level": "error",
        "message": {"text": error.message},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(error.path)}}],
    }
