"""Paths -> LintReport: find the files, ask the cache, gate, have the rest analysed, settle what is reported.

Most runs meet few files that mention mixed precision, or none: what analysis needs is loaded when there is one.
"""

# ruff: noqa: PTH100, PTH112, PTH113, PTH118, PTH120

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.lint.discover import Target, discover
from amp_doctor.lint.files import display, read_bytes
from amp_doctor.lint.glance import gated, glance
from amp_doctor.lint.result import FileReport, InputError, LintReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from amp_doctor.config import Configuration
    from amp_doctor.finding import Finding
    from amp_doctor.lint.cache import Cache

# Up to this many bytes, files that do not mention mixed precision are parsed as well, to say when one is no
# Python at all. Beyond, that would cost more than all the rest.
SMALL_RUN = 64_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked to do. `texts` are the files when they are not read from disk, by absolute path."""

    configuration: Configuration
    jobs: int | None = None
    cache: Cache | None = None
    texts: Mapping[str, bytes] | None = None
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report, and what fixing needs besides: each target's own report, and where imports are looked for."""

    report: LintReport
    targets: tuple[Target, ...]
    reports: tuple[FileReport, ...]
    roots: tuple[str, ...]


def lint_paths(paths: Sequence[str], plan: Plan) -> Outcome:
    """Everything under `paths`, each file once; one bad file never keeps the others from being checked."""
    targets, errors = discover(paths, plan.configuration)
    return lint_targets(tuple(targets), errors, roots_of(paths), plan)


def lint_text(raw: bytes, name: str | None, plan: Plan) -> tuple[Outcome, Plan]:
    """The same for a text from stdin that is, or might be, called `name`; the plan that comes back holds it."""
    path = display(name) if name is not None else "<stdin>"
    file = os.path.abspath(path)
    settings = plan.configuration.settings_for(os.path.dirname(file))
    plan = replace(plan, texts={file: raw})
    targets = (Target(file, path, settings, 0, len(raw)),)
    if settings.force_exclude:
        from amp_doctor.lint.ignores import forced_out  # noqa: PLC0415

        targets = () if forced_out(file, settings) else targets
    return lint_targets(targets, (), roots_of([file]), plan), plan


def lint_targets(
    targets: tuple[Target, ...],
    errors: Iterable[InputError],
    roots: tuple[str, ...],
    plan: Plan,
    known: Mapping[str, FileReport] | None = None,
) -> Outcome:
    """The same for files found already; `known` are reports, by path, that hold as they are."""
    reports = _reports(targets, roots, plan, known or {})
    failed = [
        InputError(report.path, f"{report.error} (AMP004)")
        for report, target in zip(reports, targets, strict=True)
        if report.error is not None and "AMP004" in target.settings.enabled_for(target.file)
    ]
    findings: tuple[Finding, ...] = ()
    if any(report.findings or report.pragmas for report in reports):
        from amp_doctor.lint.settle import settled  # noqa: PLC0415

        findings = settled(reports, targets, plan.configuration)
    ordered = sorted([*errors, *failed], key=lambda error: (error.path, error.message))
    silences = sum(report.silences for report in reports)
    return Outcome(LintReport(findings, tuple(ordered), len(targets), silences), targets, tuple(reports), roots)


def roots_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Where first-party imports are looked for: the directories named, or the top of the package they are in."""
    roots = set()
    for path in paths:
        folder = os.path.abspath(path)
        if not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        roots.add(folder)
    return tuple(sorted(roots))


def _reports(
    targets: tuple[Target, ...], roots: tuple[str, ...], plan: Plan, told: Mapping[str, FileReport]
) -> list[FileReport]:
    """One report per target: known, from the cache, or made."""
    cache = plan.cache
    keys = cache.keys(targets, roots) if cache is not None else {}
    small = sum(target.size for target in targets) <= SMALL_RUN
    reports: dict[int, FileReport] = {}
    gathered: dict[int, bytes] = {}
    for index, target in enumerate(targets):
        key = keys.get(target.settings.torch_version, "")
        known = told.get(target.path) or (cache.get(target, key, small) if cache is not None else None)
        if known is not None:
            reports[index] = known
            continue
        try:
            raw = plan.texts[target.file] if plan.texts is not None else read_bytes(target.file)
        except ReadError as error:
            reports[index] = FileReport(target.path, error=error.reason)
            continue
        if gated(raw):
            gathered[index] = raw
            continue
        reports[index] = report = glance(raw, target.path, small)
        if cache is not None:
            cache.put(target, key, None, report, small)
    if gathered:
        from amp_doctor.lint.parallel import analyse_all  # noqa: PLC0415

        for index, report in analyse_all(targets, gathered, roots, plan).items():
            reports[index] = report
            if cache is not None:
                cache.put(targets[index], keys[targets[index].settings.torch_version], gathered[index], report, True)
    if cache is not None:
        cache.save()
    return [reports[index] for index in range(len(targets))]
