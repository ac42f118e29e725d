"""LintReport -> the report for people: what is wrong, the lines that led there, what to do."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from amp_doctor.finding import Applicability
from amp_doctor.report.frame import frame
from amp_doctor.report.layout import labelled, paragraph
from amp_doctor.report.summary import fixable, sentence, shown
from amp_doctor.report.text import Line, clean, counted, headline, rendered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding
    from amp_doctor.lint.result import LintReport

FLAGS = {Applicability.SAFE: "--fix", Applicability.UNSAFE: "--fix --unsafe-fixes"}


def to_text(
    report: LintReport,
    sources: Mapping[str, str],
    summaries: Mapping[str, str],
    *,
    width: int = 100,
    color: bool = False,
    verbose: bool = False,
) -> str:
    """The whole report; `sources` maps paths to their text, `summaries` codes to the first line of their page."""
    return rendered(text_lines(report, sources, summaries, width, verbose), width, color)


def text_lines(
    report: LintReport, sources: Mapping[str, str], summaries: Mapping[str, str], width: int, verbose: bool = False
) -> list[Line]:
    """The same as styled lines."""
    out: list[Line] = []
    explained: set[str] = set()
    groups = [(path, list(group)) for path, group in groupby(shown(report), key=lambda finding: finding.path)]
    for path, findings in groups:
        if len(groups) > 1:
            out += [_header(path, findings, width), []]
        for finding in findings:
            out += [*_finding(finding, sources, width), *_advice(finding, summaries, explained, width), []]
            explained.add(finding.code)
    for error in report.errors:
        out.append([("error: ", "error"), (f"{clean(error.path)}: ", "path"), (clean(error.message), "")])
    return [*out, *_ending(report, verbose)]


def _header(path: str, findings: list[Finding], width: int) -> Line:
    count = counted(len(findings), "finding")
    rule = "-" * max(3, width - len(clean(path)) - len(count) - 2)
    return [(clean(path), "path"), (f" {rule} ", "dim"), (count, "dim")]


def _finding(finding: Finding, sources: Mapping[str, str], width: int) -> list[Line]:
    heading = headline(finding)
    if finding.fix is not None:
        heading.append((" [fixable]", "fix"))
    message = paragraph(finding.message, width)
    framed = frame(finding, sources, width)
    return [heading, *message, [], *framed] if framed else [heading, *message]


def _advice(finding: Finding, summaries: Mapping[str, str], explained: set[str], width: int) -> list[Line]:
    """What to do; the rule itself is introduced once, at its first finding."""
    out: list[Line] = []
    summary = summaries.get(finding.code, "")
    if finding.code not in explained and summary.rstrip(".").casefold() != finding.message.rstrip(".").casefold():
        out += labelled("rule", summary, "dim", width)
    if finding.fix is not None:
        out += labelled("fix", f"{finding.fix.message} ({FLAGS[finding.fix.applicability]})", "fix", width)
    if finding.code not in explained:
        out += labelled("more", f"amp-doctor explain {finding.code}", "dim", width)
    return [[], *out] if out else []


def _ending(report: LintReport, verbose: bool) -> list[Line]:
    findings = shown(report)
    style = max((finding.severity for finding in findings), key=lambda s: s.rank).value if findings else "good"
    style = "error" if report.errors else style
    out: list[Line] = [[(sentence(report), style)]]
    if report.fixed:
        out[0].append((f" {counted(report.fixed, 'fix', 'fixes')} applied.", "good"))
    if hint := fixable(findings):
        out.append([(hint, "fix")])
    if verbose:
        suppressed = sum(finding.suppressed for finding in report.findings)
        out.append([(f"{counted(suppressed, 'finding')} suppressed by comments.", "dim")])
        out.append([(f"{counted(report.silences, 'place')} could not be judged and stayed silent.", "dim")])
    return out
