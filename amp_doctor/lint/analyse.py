"""One source in, its findings out: lower the syntax, interpret every entry point, collect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amp_doctor import catalog
from amp_doctor.finding import Confidence, Finding, Related, Severity
from amp_doctor.lint.machine import entries

if TYPE_CHECKING:
    from amp_doctor.lint.checks.registry import Draft
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.project import Module, Project
    from amp_doctor.lint.source import Source
    from amp_doctor.lint.state import State


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one source gave: raw findings (no selection, no suppression yet), the first-party files it
    was read together with, and how many places the analyser kept silent about."""

    findings: tuple[Finding, ...] = ()
    dependencies: tuple[str, ...] = ()
    silences: int = 0


def analyse(source: Source, project: Project, torch_version: tuple[int, ...] | None = None) -> Analysis:
    """Findings of `source`; `project` finds the first-party modules it imports. Raises SyntaxFault."""
    from amp_doctor.lint.checks import registry
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.syntax.parse import parse

    registry.load()
    project.used = set()
    module = project.known(source) or parse(source, project.number())
    collector = _Collector()
    interpreter = Interpreter(module, project, collector.report, torch_version)
    interpreter.owners[module.number] = module
    interpreter.owners[module.frame] = module
    entries.interpret(interpreter)
    findings = tuple(sorted(_findings(collector, interpreter), key=lambda finding: finding.sort_key))
    dependencies = tuple(sorted(path for path in project.used if path != module.path))
    return Analysis(findings, dependencies, interpreter.silences)


@dataclass(slots=True)
class _Collector:
    """Runs the checks on each event and keeps their drafts, one per code and node."""

    drafts: dict[tuple[str, int], Draft] = field(default_factory=dict)
    crashes: dict[str, str] = field(default_factory=dict)

    def report(self, interpreter: Interpreter, event: Any, state: State) -> None:
        from amp_doctor.lint.checks.registry import Moment, checks_on

        moment: Moment[Any] = Moment(event, state, interpreter, "")
        for code, function in checks_on(type(event)):
            moment.code = code
            try:
                for draft in function(moment):
                    known = self.drafts.get((draft.code, draft.at))
                    if known is None or _rank(draft.confidence) > _rank(known.confidence):
                        self.drafts[(draft.code, draft.at)] = draft
            except Exception as fault:  # noqa: BLE001 - one check on one file: named in the finding, the others go on
                self.crashes.setdefault(code, f"{type(fault).__name__}: {fault}")


def _rank(confidence: Confidence) -> int:
    return ("low", "medium", "high").index(confidence.value)


def _findings(collector: _Collector, interpreter: Interpreter) -> list[Finding]:
    from amp_doctor.finding import Span
    from amp_doctor.lint.project import STRIDE

    found: list[Finding] = []
    for draft in collector.drafts.values():
        module: Module | None = interpreter.owners.get(draft.at // STRIDE)
        if module is None:
            continue
        name = catalog.codes()[draft.code]
        trail = []
        for at, words in draft.trail:
            home = interpreter.owners.get(at // STRIDE)
            if home is not None:
                trail.append(Related(home.path, home.places.span(at), words))
        span = module.places.span(draft.at)
        fix = draft.fix if module is interpreter.module else None
        found.append(
            Finding(
                draft.code,
                name,
                catalog.severity(draft.code),
                draft.message,
                module.path,
                span,
                draft.confidence,
                tuple(trail),
                fix,
            )
        )
    for code, words in sorted(collector.crashes.items()):
        message = f"the check {code} crashed on this file ({words}); its findings are missing"
        found.append(
            Finding(
                "AMP003",
                catalog.codes()["AMP003"],
                Severity.WARNING,
                message,
                interpreter.module.path,
                Span(1, 1, 1, 1),
            )
        )
    return found
