"""The reports on all files -> what is reported: selection, suppression, and each finding told once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.lint.source import read_source
from amp_doctor.lint.suppress import UNUSED, Pragma, pragmas, settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.config import Configuration
    from amp_doctor.finding import Finding, Span
    from amp_doctor.lint.discover import Target
    from amp_doctor.lint.result import FileReport

# A file with one of these was not checked, or not wholly, so nothing can be said about its suppression comments.
UNCHECKED = ("AMP001", "AMP003")


def settled(
    reports: Iterable[FileReport], targets: Iterable[Target], configuration: Configuration
) -> tuple[Finding, ...]:
    """The findings of all files in order; a finding may lie in another file than the one whose report it is in."""
    homes = {target.path: (target.file, target.settings) for target in targets}
    comments: dict[str, tuple[Pragma, ...]] = {}
    found: dict[str, list[Finding]] = defaultdict(list)
    unchecked: set[str] = set()
    for report in reports:
        if report.pragmas:
            comments[report.path] = report.pragmas
            found[report.path] += ()
        for finding in report.findings:
            found[finding.path].append(finding)
            if finding.code in UNCHECKED:
                unchecked.add(report.path)
    out: list[Finding] = []
    for path, findings in found.items():
        if path not in homes:
            # A first-party file that was only read along; its own comments and settings hold all the same.
            file = Path(path).absolute()
            homes[path] = (str(file), configuration.settings_for(str(file.parent)))
            comments[path] = _comments(file)
        file_name, settings = homes[path]
        enabled = settings.enabled_for(file_name)
        judged = enabled - {UNUSED} if path in unchecked else enabled
        kept = _distinct(finding for finding in findings if finding.code in enabled)
        out += settle(path, comments.get(path, ()), kept, judged.__contains__)
    return tuple(sorted(out, key=lambda finding: finding.sort_key))


def _distinct(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per rule and place: two files that import a third may both tell of it, by different trails."""
    best: dict[tuple[str, Span], Finding] = {}
    for finding in sorted(findings, key=lambda f: (f.sort_key, f.fix is None, len(f.related), str(f.related))):
        best.setdefault((finding.code, finding.span), finding)
    return list(best.values())


def _comments(file: Path) -> tuple[Pragma, ...]:
    try:
        return pragmas(read_source(file))
    except ReadError:
        return ()
