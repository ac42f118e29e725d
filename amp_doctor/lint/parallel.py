"""Files that passed the gate -> their reports, made in as many worker processes as pay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.lint.examine import crashed, examine
from amp_doctor.lint.result import FileReport
from amp_doctor.lint.workers import Died, in_workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.lint.discover import Target
    from amp_doctor.lint.project import Project
    from amp_doctor.lint.run import Plan

# Not worth a second process below this many bytes to analyse per process.
WORTH_A_PROCESS = 20_000


def analyse_all(
    targets: tuple[Target, ...], texts: Mapping[int, bytes], roots: tuple[str, ...], plan: Plan
) -> dict[int, FileReport]:
    """The reports on those targets that have a text here, by their index."""
    projects: list[Project] = []

    def work(index: int) -> FileReport:
        if not projects:  # one for each process, which so reads a module once
            from amp_doctor.lint.project import Project

            projects.append(Project(tuple(map(Path, roots))))
        target = targets[index]
        return examine(texts[index], target.path, Path(target.file), projects[0], target.settings.torch_version)

    # The largest first, so that no process is left alone with a large file at the end.
    order = sorted(texts, key=lambda index: (-len(texts[index]), index))
    jobs = jobs_for(sum(map(len, texts.values())), plan.jobs)
    if jobs > 1:
        warm_up()  # a single process may load it all by itself, while this one prepares the report
    reports: dict[int, FileReport] = {}
    for position, answer in in_workers(order, work, jobs, lambda index: patience(len(texts[index])), plan.meanwhile):
        path = targets[order[position]].path
        if isinstance(answer, Died):
            answer = FileReport(path, (crashed(path, answer.reason),), lasting=False)  # noqa: PLW2901
        reports[order[position]] = answer
        if plan.progress is not None:
            plan.progress(len(reports), len(order))
    return reports


def warm_up() -> None:
    """Load all that the analysis needs, so that worker processes share it."""
    examine(b"import torch\n", "warm_up.py", None, None)


def patience(size: int) -> float:
    """How many seconds a file of `size` bytes may take: some twenty times what an honest one does."""
    return 20 + size / 20_000


def jobs_for(size: int, asked: int | None) -> int:
    """How many processes `size` bytes are worth."""
    if asked is not None:
        return asked
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, size // WORTH_A_PROCESS))
