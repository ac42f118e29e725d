"""A LintReport as it is shown: findings of notebooks told by cell and line, and the texts that frames quote."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.finding import Edit, Finding, Related, Span
from amp_doctor.lint.source import Source, parse_source, read_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.lint.result import LintReport


def present(
    report: LintReport, quoted: bool, texts: Mapping[str, bytes] | None = None
) -> tuple[LintReport, dict[str, str]]:
    """The report in cells, and the text of every file that findings and, when `quoted`, their trails are in."""
    paths = {finding.path for finding in report.findings if quoted or finding.path.endswith(".ipynb")}
    if quoted:
        paths |= {step.path for finding in report.findings for step in finding.related}
    sources = {path: source for path in sorted(paths) if (source := _source(path, texts or {})) is not None}
    findings = tuple(in_cells(finding, sources) for finding in report.findings)
    return replace(report, findings=findings), _quoted(sources)


def in_cells(finding: Finding, sources: Mapping[str, Source]) -> Finding:
    """`finding` with lines, and the edits of its fix, counted inside its cell if it lies in a notebook."""
    related = tuple(_step_in_cell(step, sources) for step in finding.related)
    source = sources.get(finding.path)
    cell = source.cell_at(finding.span.line) if source is not None else None
    if source is None or cell is None:
        return replace(finding, related=related)
    start = sum(_size(other.masked) for other in source.cells or () if other.number < cell.number)
    end = start + _size(cell.masked)
    fix = finding.fix
    if fix is not None:
        inside = all(start <= edit.start <= edit.end <= end for edit in fix.edits)
        edits = tuple(Edit(edit.start - start, edit.end - start, edit.text) for edit in fix.edits)
        fix = replace(fix, edits=edits) if inside else None
    return replace(finding, span=_moved(finding.span, cell.first_line), related=related, fix=fix, cell=cell.number)


def _step_in_cell(step: Related, sources: Mapping[str, Source]) -> Related:
    source = sources.get(step.path)
    cell = source.cell_at(step.span.line) if source is not None else None
    return step if cell is None else replace(step, span=_moved(step.span, cell.first_line), cell=cell.number)


def _moved(span: Span, first_line: int) -> Span:
    return Span(span.line - first_line + 1, span.column, span.end_line - first_line + 1, span.end_column)


def _size(text: str) -> int:
    return len(text.encode()) + (bool(text) and not text.endswith(("\n", "\r")))


def _quoted(sources: Mapping[str, Source]) -> dict[str, str]:
    quoted = {}
    for path, source in sources.items():
        if source.cells is None:
            quoted[path] = source.code
        else:
            quoted |= {f"{path}:{cell.number}": cell.code for cell in source.cells}
    return quoted


def _source(path: str, texts: Mapping[str, bytes]) -> Source | None:
    raw = texts.get(os.path.abspath(path))
    try:
        return read_source(path) if raw is None else parse_source(raw, path)
    except ReadError:
        return None
