"""The numbers of a run: findings by severity and by rule, and the sentence that ends a report."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from amp_doctor.report.text import counted

if TYPE_CHECKING:
    from amp_doctor.finding import Finding
    from amp_doctor.lint.result import LintReport


def shown(report: LintReport) -> list[Finding]:
    """The findings that no comment suppresses."""
    return [finding for finding in report.findings if not finding.suppressed]


def by_severity(findings: list[Finding]) -> str:
    """`2 errors, 1 warning`, the worst first."""
    from amp_doctor.finding import Severity

    counts = Counter(finding.severity for finding in findings)
    return ", ".join(counted(counts[severity], severity.value) for severity in Severity if counts[severity])


def sentence(report: LintReport) -> str:
    """`Found 3 findings (2 errors, 1 note) in 2 of 14 files.`"""
    findings = shown(report)
    if not report.files:
        return "No file was checked."
    if not findings:
        nothing = "Nothing was found wrong" if not report.errors else "Nothing else was found wrong"
        return f"{nothing} in {counted(report.files, 'file')}."
    places = len({finding.path for finding in findings})
    within = counted(places, "file") if places == report.files else f"{places} of {counted(report.files, 'file')}"
    return f"Found {counted(len(findings), 'finding')} ({by_severity(findings)}) in {within}."


def fixable(findings: list[Finding]) -> str:
    """What --fix and --unsafe-fixes would mend; empty when nothing."""
    from amp_doctor.finding import Applicability

    counts = Counter(finding.fix.applicability for finding in findings if finding.fix is not None)
    safe, unsafe = counts[Applicability.SAFE], counts[Applicability.UNSAFE]
    if safe and unsafe:
        return f"{safe} can be fixed with --fix, {unsafe} more with --fix --unsafe-fixes."
    if safe:
        return f"{safe} can be fixed with --fix."
    return f"{unsafe} can be fixed with --fix --unsafe-fixes." if unsafe else ""
