"""Paths -> LintReport: find the files, ask the cache, gate, analyse in worker processes, settle what is reported."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.lint.discover import Target, discover
from amp_doctor.lint.examine import crashed, examine, gated, glance
from amp_doctor.lint.ignores import forced_out
from amp_doctor.lint.result import FileReport, InputError, LintReport
from amp_doctor.lint.source import display, read_bytes, read_source
from amp_doctor.lint.suppress import Pragma, pragmas, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from amp_doctor.config import Configuration
    from amp_doctor.finding import Finding
    from amp_doctor.lint.cache import Cache

# Up to this many bytes, files that do not mention mixed precision are parsed as well, to say when one is no
# Python at all. Beyond, that would cost more than all the rest.
SMALL_RUN = 64_000
# Not worth a second process below this many bytes to analyse per process.
WORTH_A_PROCESS = 20_000


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
    roots: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    target: Target
    raw: bytes
    parse: bool = True


def lint_paths(paths: Sequence[str], plan: Plan) -> Outcome:
    """Everything under `paths`, each file once; one bad file never keeps the others from being checked."""
    targets, errors = discover(paths, plan.configuration)
    return lint_targets(tuple(targets), errors, roots_of(paths), plan)


def lint_text(raw: bytes, name: str | None, plan: Plan) -> tuple[Outcome, Plan]:
    """The same for a text from stdin that is, or might be, called `name`; the plan that comes back holds it."""
    path = display(name) if name is not None else "<stdin>"
    file = Path(path).absolute()
    settings = plan.configuration.settings_for(file.parent)
    plan = replace(plan, texts={str(file): raw})
    excluded = settings.force_exclude and forced_out(str(file), settings)
    targets = () if excluded else (Target(str(file), path, settings, 0, len(raw)),)
    return lint_targets(targets, (), roots_of([str(file)]), plan), plan


def lint_targets(
    targets: tuple[Target, ...],
    errors: Iterable[InputError],
    roots: tuple[Path, ...],
    plan: Plan,
    known: Mapping[str, FileReport] | None = None,
) -> Outcome:
    """The same for files found already; `known` are reports, by path, that hold as they are."""
    reports = _reports(targets, roots, plan, known or {})
    failed = [
        InputError(report.path, f"{report.error} (AMP004)")
        for report, target in zip(reports, targets, strict=True)
        if report.error is not None and "AMP004" in target.settings.enabled_for(Path(target.file))
    ]
    findings = settled(reports, targets, plan.configuration)
    silences = sum(report.silences for report in reports)
    report = LintReport(findings, tuple(sorted([*errors, *failed])), len(targets), silences)
    return Outcome(report, targets, tuple(reports), roots)


def settled(
    reports: Iterable[FileReport], targets: Iterable[Target], configuration: Configuration
) -> tuple[Finding, ...]:
    """Selection and suppression: the findings of all files, each told once, in order."""
    settings = {target.path: (target.file, target.settings) for target in targets}
    comments: dict[str, tuple[Pragma, ...]] = {}
    found: dict[str, dict[Finding, None]] = defaultdict(dict)
    unchecked: set[str] = set()
    for report in reports:
        if report.pragmas:
            comments[report.path] = report.pragmas
            found[report.path]
        for finding in report.findings:
            found[finding.path][finding] = None
            if finding.code in ("AMP001", "AMP003"):
                unchecked.add(report.path)
    out: list[Finding] = []
    for path, findings in found.items():
        if path not in settings:
            # A first-party file that was only read along; its own comments and settings hold all the same.
            file = Path(path).resolve()
            settings[path] = (str(file), configuration.settings_for(file.parent))
            comments[path] = _comments(file)
        file_name, its_settings = settings[path]
        enabled = its_settings.enabled_for(Path(file_name))
        judged = enabled - {"AMP002"} if path in unchecked else enabled
        kept = _distinct(finding for finding in findings if finding.code in enabled)
        out += settle(path, comments.get(path, ()), kept, judged.__contains__)
    return tuple(sorted(out, key=lambda finding: finding.sort_key))


def _distinct(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per rule and place: two files that import a third may both tell of it, by different trails."""
    best: dict[tuple[str, object], Finding] = {}
    for finding in sorted(findings, key=lambda f: (f.sort_key, f.fix is None, len(f.related), f.related)):
        best.setdefault((finding.code, finding.span), finding)
    return list(best.values())


def _comments(file: Path) -> tuple[Pragma, ...]:
    try:
        return pragmas(read_source(file))
    except ReadError:
        return ()


def roots_of(paths: Iterable[str]) -> tuple[Path, ...]:
    """Where first-party imports are looked for: the directories named, or the top of the package they are in."""
    roots = set()
    for path in paths:
        folder = Path(path).absolute()
        if not folder.is_dir():
            folder = folder.parent
        folder = Path(*folder.parts[:1], *[part for part in folder.parts[1:] if part != "."]).resolve()
        while (folder / "__init__.py").is_file() and folder.parent != folder:
            folder = folder.parent
        roots.add(folder)
    return tuple(sorted(roots))


def _reports(
    targets: tuple[Target, ...], roots: tuple[Path, ...], plan: Plan, told: Mapping[str, FileReport]
) -> list[FileReport]:
    keys = _keys(targets, roots) if plan.cache is not None else {}
    small = sum(target.size for target in targets) <= SMALL_RUN
    reports: dict[int, FileReport] = {}
    tasks: dict[int, _Task] = {}
    for index, target in enumerate(targets):
        key = keys.get(target.settings.torch_version, "")
        known = told.get(target.path)
        if known is None and plan.cache is not None:
            known = plan.cache.get(target, key, small)
        if known is not None:
            reports[index] = known
            continue
        try:
            raw = (
                read_bytes(target.file)
                if plan.texts is None
                else plan.texts.get(target.file) or read_bytes(target.file)
            )
        except ReadError as error:
            reports[index] = FileReport(target.path, error=error.reason)
            continue
        if gated(raw):
            tasks[index] = _Task(target, raw)
            continue
        reports[index] = report = glance(raw, target.path, small)
        if plan.cache is not None:
            plan.cache.put(target, key, None, report, small)
    for index, report in _analysed(tasks, roots, plan).items():
        reports[index] = report
        task = tasks[index]
        if plan.cache is not None:
            plan.cache.put(task.target, keys[task.target.settings.torch_version], task.raw, report, parsed=True)
    if plan.cache is not None and plan.texts is None:
        plan.cache.save()
    return [reports[index] for index in range(len(targets))]


def _keys(targets: tuple[Target, ...], roots: tuple[Path, ...]) -> dict[tuple[int, ...] | None, str]:
    from amp_doctor.lint.cache import key_of  # noqa: PLC0415

    versions = {target.settings.torch_version for target in targets}
    return {version: key_of(version, roots, targets) for version in versions}


def _analysed(tasks: dict[int, _Task], roots: tuple[Path, ...], plan: Plan) -> dict[int, FileReport]:
    """The reports on the files that passed the gate, made in worker processes."""
    if not tasks:
        return {}
    from amp_doctor.lint.project import Project  # noqa: PLC0415 - only now is there anything to analyse
    from amp_doctor.lint.workers import Died, in_workers  # noqa: PLC0415

    warm_up()
    project = Project(roots)

    def work(index: int) -> FileReport:
        task = tasks[index]
        settings = task.target.settings
        return examine(task.raw, task.target.path, Path(task.target.file), project, settings.torch_version)

    # The largest first, so that no process is left alone with a large file at the end.
    order = sorted(tasks, key=lambda index: (-len(tasks[index].raw), index))
    size = sum(len(task.raw) for task in tasks.values())
    reports: dict[int, FileReport] = {}
    for position, result in in_workers(order, work, jobs_for(size, plan.jobs), lambda i: patience(tasks[i].raw)):
        index = order[position]
        path = tasks[index].target.path
        reports[index] = FileReport(path, (crashed(path, result.reason),)) if isinstance(result, Died) else result
        if plan.progress is not None:
            plan.progress(len(reports), len(order))
    return reports


def warm_up() -> None:
    """Load all that the analysis needs, so that worker processes share it."""
    examine(b"import torch\n", "warm_up.py", None, None)


def patience(raw: bytes) -> float:
    """How many seconds a file may take: some fifty times what an honest one does."""
    return 60 + len(raw) / 20_000


def jobs_for(size: int, asked: int | None) -> int:
    """How many processes `size` bytes are worth."""
    if asked is not None:
        return asked
    import os  # noqa: PLC0415

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, size // WORTH_A_PROCESS))
