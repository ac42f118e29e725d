"""LintReport -> how often each rule was met, the most frequent first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from amp_doctor.report.summary import sentence, shown

if TYPE_CHECKING:
    from amp_doctor.lint.result import LintReport


def to_statistics(report: LintReport) -> str:
    """`   12  AMP201  error    [*]  clip-before-unscale`; `[*]` marks rules some of whose findings can be fixed."""
    findings = shown(report)
    counts = Counter((finding.code, finding.name, finding.severity.value) for finding in findings)
    fixed = {finding.code for finding in findings if finding.fix is not None}
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    width = len(str(max(counts.values(), default=0)))
    lines = [
        f"{count:>{width}}  {code}  {severity:<7}  {'[*]' if code in fixed else '   '}  {name}"
        for (code, name, severity), count in rows
    ]
    if fixed:
        lines.append("[*] can be fixed, at least in part, with --fix or --fix --unsafe-fixes.")
    return "".join(f"{line}\n" for line in [*lines, sentence(report)])
