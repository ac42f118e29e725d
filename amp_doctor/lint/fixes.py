"""Findings with fixes -> changed files: edits that do not overlap, proved by analysing the result, to a fixed point."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.finding import Applicability
from amp_doctor.lint.examine import examine
from amp_doctor.lint.files import read_bytes
from amp_doctor.lint.parallel import jobs_for, patience, warm_up
from amp_doctor.lint.project import Project
from amp_doctor.lint.result import FileReport, InputError
from amp_doctor.lint.run import Outcome, Plan, lint_targets
from amp_doctor.lint.source import edited, parse_source
from amp_doctor.lint.suppress import UNUSED, settle
from amp_doctor.lint.workers import Died, in_workers
from amp_doctor.selection import OPT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from amp_doctor.finding import Finding
    from amp_doctor.lint.discover import Target
    from amp_doctor.lint.source import Source

ROUNDS = 10

# Not splitlines(): a form feed inside a line does not end it.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class Mended:
    """A file as it was and as its fixes make it; `count` fixes were applied."""

    target: Target
    before: Source
    after: Source
    count: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Which fixes are wanted in a file, which codes are on there, and how a changed text is analysed."""

    unsafe: bool
    enabled: frozenset[str]
    check: Callable[[Source], FileReport]

    def wants(self, finding: Finding) -> bool:
        """True when the fix of `finding` may be applied."""
        if finding.fix is None or finding.suppressed or finding.code not in self.enabled:
            return False
        return self.unsafe or finding.fix.applicability is Applicability.SAFE


def mend_all(outcome: Outcome, plan: Plan, unsafe: bool) -> tuple[Mended, ...]:
    """The files that fixes change, worked out in worker processes; nothing is written."""
    by_path: dict[str, list[Finding]] = {}
    for finding in outcome.report.findings:
        by_path.setdefault(finding.path, []).append(finding)
    tasks = []
    for target, report in zip(outcome.targets, outcome.reports, strict=True):
        rules = Rules(unsafe, target.settings.enabled_for(target.file), _checker(target, outcome.roots))
        if any(map(rules.wants, by_path.get(target.path, ()))):
            tasks.append((target, report, rules))
    if not tasks:
        return ()
    warm_up()

    def work(index: int) -> Mended | None:
        target, report, rules = tasks[index]
        raw = (plan.texts or {}).get(target.file)
        try:
            source = parse_source(read_bytes(target.file) if raw is None else raw, target.path, Path(target.file))
        except ReadError:
            return None
        after, count = mend(source, report, by_path[target.path], rules)
        return Mended(target, source, after, count) if count else None

    order = list(range(len(tasks)))
    jobs = jobs_for(sum(tasks[index][0].size for index in order), plan.jobs)
    done = dict(in_workers(order, work, jobs, lambda index: ROUNDS * patience(tasks[index][0].size)))
    found = [done[index] for index in order]
    return tuple(mended for mended in found if mended is not None and not isinstance(mended, Died))


def _checker(target: Target, roots: tuple[str, ...]) -> Callable[[Source], FileReport]:
    def check(changed: Source) -> FileReport:
        return examine(
            changed.raw, changed.path, changed.file, Project(tuple(map(Path, roots))), target.settings.torch_version
        )

    return check


def mend(
    source: Source,
    report: FileReport,
    findings: Sequence[Finding],
    rules: Rules,
) -> tuple[Source, int]:
    """`source` with its fixes, and how many there were.

    A fix is kept when the result parses, has no finding that was not there before, and has lost its own.
    """
    # A comment that hides what the analysis of another file found must not be taken for unused in later rounds,
    # when only this file is looked at.
    known = {replace(finding, suppressed=True) for finding in report.findings}
    foreign = any(finding.suppressed and finding not in known for finding in findings if finding.code != UNUSED)
    later = rules.enabled - {UNUSED} if foreign else rules.enabled
    refused: set[Finding] = set()
    count = 0
    for _ in range(ROUNDS):
        wanted = [finding for finding in findings if rules.wants(finding) and finding not in refused]
        chosen = without_overlaps(wanted)
        if not chosen:
            break
        attempt = _attempt(source, report, chosen, rules)
        if attempt is None:
            chosen, attempt = _one_by_one(source, report, chosen, rules, refused)
        if attempt is not None:
            source, report = attempt
            count += len(chosen)
            kept = [finding for finding in report.findings if finding.code in later]
            findings = settle(source.path, report.pragmas, kept, later.__contains__)
    return source, count


def without_overlaps(findings: Iterable[Finding]) -> list[Finding]:
    """The findings whose fixes can be applied together: of two that overlap the first by position."""
    taken: list[tuple[int, int]] = []
    chosen = []
    for finding in sorted(
        findings,
        key=lambda f: (min((e.start, e.end) for e in f.fix.edits) if f.fix and f.fix.edits else (0, 0), f.code),
    ):
        spans = [(edit.start, edit.end) for edit in finding.fix.edits] if finding.fix else []
        if spans and not any(_overlap(span, other) for span in spans for other in taken):
            taken += spans
            chosen.append(finding)
    return chosen


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] == other[0] or (one[0] < other[1] and other[0] < one[1])


def _one_by_one(
    source: Source,
    report: FileReport,
    chosen: list[Finding],
    rules: Rules,
    refused: set[Finding],
) -> tuple[list[Finding], tuple[Source, FileReport] | None]:
    """The fixes that are good together, after all of them were not; the others are refused for good."""
    good: list[Finding] = []
    best = None
    for finding in chosen:
        attempt = _attempt(source, report, [*good, finding], rules)
        if attempt is None:
            refused.add(finding)
        else:
            good.append(finding)
            best = attempt
    return good, best


def _attempt(
    source: Source, report: FileReport, chosen: list[Finding], rules: Rules
) -> tuple[Source, FileReport] | None:
    """The source with these fixes and the report on it; None when the result is not an improvement."""
    edits = [edit for finding in chosen if finding.fix is not None for edit in finding.fix.edits]
    try:
        changed = edited(source, edits)
    except (ValueError, ReadError):
        return None
    after = rules.check(changed)
    if after.error is not None:
        return None
    old, new = (Counter(finding.code for finding in findings) for findings in (report.findings, after.findings))
    if any(new[code] > old[code] for code in new if code in rules.enabled or not code.startswith(OPT_IN)):
        return None
    if any(new[finding.code] >= old[finding.code] for finding in chosen if finding.code != UNUSED):
        return None
    return changed, after


def write_all(mended: Iterable[Mended]) -> tuple[list[Mended], list[InputError]]:
    """Write the changed files; those that could not be written come back as errors."""
    written, errors = [], []
    for one in mended:
        try:
            if read_bytes(one.target.file) != one.before.raw:
                errors.append(InputError(one.target.path, "changed while it was being fixed, so it was left alone"))
                continue
            write(Path(one.target.file), one.after.raw)
            written.append(one)
        except ReadError as error:
            errors.append(InputError(one.target.path, error.reason))
        except OSError as error:
            errors.append(InputError(one.target.path, f"cannot be written: {error.strerror or error}"))
    return written, errors


def write(file: Path, raw: bytes) -> None:
    """Replace the contents of `file` in one step, so that nobody ever sees half of it; its mode is kept."""
    real = file.resolve()
    if not os.access(real, os.W_OK):
        # Replacing it would work all the same in a directory of ours; the owner did not mean that.
        raise PermissionError(13, "no permission to write it")
    temporary = real.with_name(f".{real.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(raw)
        temporary.chmod(real.stat().st_mode & 0o7777)
        temporary.replace(real)
    finally:
        temporary.unlink(missing_ok=True)


def apply_all(outcome: Outcome, mended: Sequence[Mended], plan: Plan) -> tuple[Outcome, Plan]:
    """Write the changed files, or change the texts that lie in no file, and lint again what that concerns."""
    if plan.texts is not None:
        plan = replace(plan, texts={**plan.texts, **{one.target.file: one.after.raw for one in mended}})
        return _again(outcome, mended, [], plan), plan
    written, errors = write_all(mended)
    return _again(outcome, written, errors, plan), plan


def _again(outcome: Outcome, mended: Sequence[Mended], errors: Iterable[InputError], plan: Plan) -> Outcome:
    """Only what changed, and what was read together with it, is analysed anew."""
    changed = {one.target.path for one in mended}
    targets = tuple(_restat(target) if target.path in changed else target for target in outcome.targets)
    known = {
        report.path: report
        for report in outcome.reports
        if report.path not in changed and changed.isdisjoint(report.dependencies)
    }
    listed = {report.path for report in outcome.reports}
    elsewhere = [error for error in outcome.report.errors if error.path not in listed]
    again = lint_targets(targets, [*elsewhere, *errors], outcome.roots, plan, known)
    return replace(again, report=replace(again.report, fixed=sum(one.count for one in mended)))


def diff(mended: Iterable[Mended]) -> str:
    """The changes as a unified diff; a notebook's are those of its code cells."""
    from difflib import unified_diff

    out = []
    for one in mended:
        before, after = (_LINE.findall(source.code) for source in (one.before, one.after))
        lines = unified_diff(before, after, f"a/{one.target.path}", f"b/{one.target.path}")
        out += [line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines]
    return "".join(out)


def _restat(target: Target) -> Target:
    try:
        stat = Path(target.file).stat()
    except OSError:
        return target
    return replace(target, mtime_ns=stat.st_mtime_ns, size=stat.st_size)
