"""LintReport -> workflow commands of GitHub Actions, which become annotations on the changed lines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from amp_doctor.finding import NOWHERE, Severity
from amp_doctor.report.summary import sentence, shown

if TYPE_CHECKING:
    from amp_doctor.finding import Finding
    from amp_doctor.lint.result import LintReport

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
# GitHub drops what goes beyond this number of errors, and of warnings, in one step of a workflow.
SHOWN_PER_STEP = 10


def to_github(report: LintReport) -> str:
    """One command per finding, then a summary that GitHub keeps in the log whatever it shows."""
    findings = shown(report)
    lines = [_command(finding) for finding in findings]
    lines += [f"::error file={_property(e.path)},title=amp-doctor::{_message(e.message)}" for e in report.errors]
    lines.append(_message(sentence(report)))
    counts = Counter(COMMANDS[finding.severity] for finding in findings)
    counts["error"] += len(report.errors)
    if any(count > SHOWN_PER_STEP for count in counts.values()):
        lines.append(
            f"GitHub shows at most {SHOWN_PER_STEP} annotations of each kind per step; all are listed above, and "
            "--output-format sarif shows them all in code scanning."
        )
    return "".join(f"{line}\n" for line in lines)


def _command(finding: Finding) -> str:
    span = finding.span
    properties = {"file": finding.path}
    if span is not NOWHERE:
        properties |= {"line": str(span.line), "endLine": str(span.end_line)}
    if span.line == span.end_line and span is not NOWHERE:
        # GitHub refuses columns on an annotation of several lines.
        properties |= {"col": str(span.column), "endColumn": str(span.end_column)}
    properties["title"] = f"{finding.code} {finding.name}"
    place = f"{finding.path}:{span.line}:{span.column}" if span is not NOWHERE else finding.path
    if finding.cell is not None:
        place = f"{finding.path}:cell {finding.cell}:{span.line}:{span.column}"
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{COMMANDS[finding.severity]} {listed}::{_message(f'{place}: {finding.code} {finding.message}')}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
