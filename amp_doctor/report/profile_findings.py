"""The probe's findings in the look of the linter's, those of one code together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.report.layout import labelled, paragraph
from amp_doctor.report.text import Line, clean, counted, headline, place

if TYPE_CHECKING:
    from amp_doctor.finding import Finding
    from amp_doctor.report.sheet import Sheet

# Of one code so many are told in full; further ones by the names of their layers.
IN_FULL = 3
NAMED = 8


def findings_lines(sheet: Sheet) -> list[Line]:
    """Every finding, the worst code first; many of one code are the same illness in many layers."""
    groups: dict[str, list[Finding]] = {}
    for finding in sheet.findings:
        groups.setdefault(finding.code, []).append(finding)
    out: list[Line] = []
    for code, group in groups.items():
        for index, finding in enumerate(group[:IN_FULL]):
            out += [*([[]] if index else []), *_finding(finding, sheet.width)]
        out += _others(group[IN_FULL:], sheet.width)
        out += [*labelled("more", f"amp-doctor explain {code}", "dim", sheet.width), []]
    return out


def _finding(finding: Finding, width: int) -> list[Line]:
    # A message that names its layer itself needs no second mention.
    named = finding.layer and finding.layer not in finding.message
    return [
        headline(finding),
        *(labelled("layer", finding.layer, "name", width) if named and finding.layer else []),
        *paragraph(finding.message, width),
    ]


def _others(rest: list[Finding], width: int) -> list[Line]:
    if not rest:
        return []
    names = [clean(finding.layer or place(finding)) for finding in rest]
    beyond = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return labelled("also", ", ".join(names[:NAMED]) + beyond, "", width)


def closing(sheet: Sheet) -> list[Line]:
    """`Found 3 findings (1 error, 2 warnings) in 50 steps.`"""
    from amp_doctor.report.summary import by_severity

    findings = list(sheet.findings)
    steps = counted(sheet.profile.steps.attempted, "step")
    if not findings and not sheet.profile.steps.attempted:
        return [[("Without a step there was nothing to judge.", "warning")]]
    if not findings:
        return [[(f"Nothing was found wrong in {steps}.", "good")]]
    worst = max(findings, key=lambda finding: finding.severity.rank).severity.value
    return [[(f"Found {counted(len(findings), 'finding')} ({by_severity(findings)}) in {steps}.", worst)]]
