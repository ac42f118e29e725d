"""Paths -> LintReport: find the files, ask the cache, gate, have the rest analysed, settle what is reported.

Most runs meet few files that mention mixed precision, or none: what analysis needs is loaded when there is one.
"""

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

# Files that do not mention mixed precision are not parsed, but for the smallest of them, up to this many bytes in
# all: so whoever lints a file or two is told when one is no Python, and nobody waits for it on a large tree.
SMALL_RUN = 64_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is asked to do; without `cache_dir` there is no cache.

    `texts` are the files when they are not read from disk, by absolute path. `progress` is told how many files
    of how many are analysed, `meanwhile` is called while others work.
    """

    configuration: Configuration
    jobs: int | None = None
    cache_dir: str | None = None
    texts: Mapping[str, bytes] | None = None
    progress: Callable[[int, int], None] | None = None
    meanwhile: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report, and what fixing needs besides: each target's own report, and where imports are looked for.

    `cached` counts the reports that came from the cache.
    """

    report: LintReport
    targets: tuple[Target, ...]
    reports: tuple[FileReport, ...]
    roots: tuple[str, ...]
    cached: int = 0


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
    targets: tuple[Target, ...] = (Target(file, path, settings, 0, len(raw)),)
    if settings.force_exclude:
        from amp_doctor.lint.ignores import forced_out

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
    reports, cached = _reports(targets, roots, plan, known or {})
    failed = [
        InputError(report.path, f"{report.error} (AMP004)")
        for report, target in zip(reports, targets, strict=True)
        if report.error is not None and "AMP004" in target.settings.enabled_for(target.file)
    ]
    findings: tuple[Finding, ...] = ()
    if any(report.findings or report.pragmas for report in reports):
        from amp_doctor.lint.settle import settled

        findings = settled(reports, targets, plan.configuration)
    ordered = sorted([*errors, *failed], key=lambda error: (error.path, error.message))
    silences = sum(report.silences for report in reports)
    report = LintReport(findings, tuple(ordered), len(targets), silences)
    return Outcome(report, targets, tuple(reports), roots, cached)


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
) -> tuple[list[FileReport], int]:
    """One report per target, known, from the cache or made; and how many came from the cache."""
    parsed = _smallest(targets)
    # For a few small files the cache is asked only when one has to be analysed: it takes longer than to read them.
    small = len(parsed) == len(targets)
    cache = None if small else _opened(plan, targets, roots)
    reports: dict[int, FileReport] = {}
    gathered: dict[int, bytes] = {}
    for index, target in enumerate(targets):
        known = told.get(target.path) or (cache.get(target, index in parsed) if cache is not None else None)
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
        reports[index] = report = glance(raw, target.path, index in parsed)
        if cache is not None:
            cache.put(target, None, report, index in parsed)
    if gathered and small and (cache := _opened(plan, targets, roots)) is not None:
        found = {index: known for index in gathered if (known := cache.get(targets[index], True)) is not None}
        reports |= found
        gathered = {index: raw for index, raw in gathered.items() if index not in found}
    if gathered:
        from amp_doctor.lint.parallel import analyse_all

        for index, report in analyse_all(targets, gathered, roots, plan).items():
            reports[index] = report
            if cache is not None:
                cache.put(targets[index], gathered[index], report, True)
    if cache is not None:
        cache.save()
    return [reports[index] for index in range(len(targets))], cache.hits if cache is not None else 0


def _smallest(targets: tuple[Target, ...]) -> set[int]:
    chosen: set[int] = set()
    left = SMALL_RUN
    for index in sorted(range(len(targets)), key=lambda index: targets[index].size):
        left -= targets[index].size
        if left < 0:
            break
        chosen.add(index)
    return chosen


def _opened(plan: Plan, targets: tuple[Target, ...], roots: tuple[str, ...]) -> Cache | None:
    if plan.cache_dir is None:
        return None
    from amp_doctor.lint.cache import Cache

    return Cache(plan.cache_dir, targets, roots)
