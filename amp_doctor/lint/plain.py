"""FileReport <-> plain lists, as the cache keeps it; paths go through a function, for they depend on where we are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Confidence, Edit, Finding, Fix, Related, Severity, Span
from amp_doctor.lint.result import FileReport
from amp_doctor.lint.suppress import Pragma

if TYPE_CHECKING:
    from collections.abc import Callable

    Rename = Callable[[str], str]


def to_plain(report: FileReport, name: Rename) -> list[Any]:
    """`report` without its path and its dependencies, which the cache keeps itself."""
    return [
        [_plain_finding(finding, name) for finding in report.findings],
        report.silences,
        [_plain_pragma(pragma) for pragma in report.pragmas],
    ]


def from_plain(path: str, plain: list[Any], rename: Rename) -> FileReport:
    """The report on the file that is called `path` today; raises TypeError or ValueError for anything else."""
    findings, silences, pragmas = plain
    return FileReport(
        path,
        tuple(_finding(plain, rename) for plain in findings),
        silences=int(silences),
        pragmas=tuple(_pragma(plain) for plain in pragmas),
    )


def _plain_finding(finding: Finding, name: Rename) -> list[Any]:
    fix = finding.fix
    return [
        finding.code,
        finding.name,
        finding.severity,
        finding.message,
        name(finding.path),
        _plain_span(finding.span),
        finding.confidence,
        [[name(step.path), _plain_span(step.span), step.message] for step in finding.related],
        fix and [fix.applicability, fix.message, [_plain_edit(edit) for edit in fix.edits]],
    ]


def _finding(plain: list[Any], rename: Rename) -> Finding:
    code, name, severity, message, path, span, confidence, related, fix = plain
    return Finding(
        code,
        name,
        Severity(severity),
        message,
        rename(path),
        Span(*span),
        Confidence(confidence),
        tuple(Related(rename(where), Span(*there), words) for where, there, words in related),
        fix and Fix(Applicability(fix[0]), fix[1], tuple(Edit(*edit) for edit in fix[2])),
    )


def _plain_span(span: Span) -> list[int]:
    return [span.line, span.column, span.end_line, span.end_column]


def _plain_edit(edit: Edit) -> list[Any]:
    return [edit.start, edit.end, edit.text]


def _plain_pragma(pragma: Pragma) -> list[Any]:
    return [
        _plain_span(pragma.span),
        pragma.first,
        pragma.last,
        pragma.noqa,
        pragma.codes,
        _plain_edit(pragma.removal),
        pragma.start,
        pragma.end,
        pragma.head,
        pragma.separator,
        pragma.tail,
        pragma.fault,
    ]


def _pragma(plain: list[Any]) -> Pragma:
    span, first, last, noqa, codes, removal, *rest = plain
    return Pragma(Span(*span), first, last, noqa, tuple(codes), Edit(*removal), *rest)
