"""LintReport -> one line per finding, as editors and grep like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.report.summary import shown
from amp_doctor.report.text import clean, place

if TYPE_CHECKING:
    from amp_doctor.lint.result import LintReport


def to_concise(report: LintReport) -> str:
    """`path:line:col: AMP201 [error] message`; an unreadable path takes a line of its own."""
    found = [f"{place(f)}: {f.code} [{f.severity}] {clean(f.message)}\n" for f in shown(report)]
    failed = [f"{clean(error.path)}: {clean(error.message)}\n" for error in report.errors]
    return "".join(found + failed)
