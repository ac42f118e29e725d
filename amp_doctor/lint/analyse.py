"""One source in, its findings out: lower the syntax, interpret every entry point, collect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.finding import Finding
    from amp_doctor.lint.project import Project
    from amp_doctor.lint.source import Source


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one source gave: raw findings (no selection, no suppression yet), the first-party files it
    was read together with, and how many places the analyser kept silent about."""

    findings: tuple[Finding, ...] = ()
    dependencies: tuple[str, ...] = ()
    silences: int = 0


def analyse(source: Source, project: Project, torch_version: tuple[int, ...] | None = None) -> Analysis:
    """Findings of `source`; `project` finds the first-party modules it imports. Raises SyntaxFault."""
    return Analysis()
