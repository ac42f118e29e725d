"""Expectations inside linted text: `# AMP201: words | AMP301: words` at the end of the line of the findings."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from amp_doctor import catalog
from amp_doctor.lint.examine import examine
from amp_doctor.lint.files import display
from amp_doctor.lint.project import Project
from amp_doctor.lint.source import read_source
from amp_doctor.lint.suppress import settle
from amp_doctor.selection import Choice, chosen

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from amp_doctor.finding import Finding

COMMENT = re.compile(r"\s*# (AMP\d{3}: .*)$")


def lint_file(file: Path, project: Project | None = None) -> list[Finding]:
    """The findings of one file under the default rules, suppression comments honoured."""
    report = examine(file.read_bytes(), display(str(file)), file, project or Project((file.parent,)))
    assert report.error is None, report.error
    enabled = chosen(catalog.codes(), [Choice()])
    selected = [finding for finding in report.findings if finding.code in enabled]
    settled = settle(report.path, report.pragmas, selected, enabled.__contains__)
    return sorted((f for f in settled if not f.suppressed), key=lambda finding: finding.sort_key)


def mismatches_in(file: Path, project: Project | None = None) -> list[str]:
    """What a file's comments expect and its linting does not give, and the other way round."""
    return mismatches(read_source(file).code, lint_file(file, project), file.name)


def mismatches(code: str, findings: Iterable[Finding], name: str) -> list[str]:
    """One line for each finding that no comment expects and each comment without its finding."""
    found: dict[int, list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.span.line].append(finding)
    wanted = expectations(code)
    wrong = []
    for line in sorted(found.keys() | wanted.keys()):
        left = list(found[line])
        for expected, words in wanted.get(line, []):
            same = [finding for finding in left if finding.code == expected]
            match = next((finding for finding in same if words.casefold() in finding.message.casefold()), None)
            if match is None:
                says = f"; it says {[finding.message for finding in same]}" if same else ""
                wrong.append(f"{name}:{line}: no {expected} with the words {words!r}{says}")
                left = [finding for finding in left if finding.code != expected]
            else:
                left.remove(match)
        wrong += [f"{name}:{line}: unexpected {finding.code}: {finding.message}" for finding in left]
    return wrong


def expectations(code: str) -> dict[int, list[tuple[str, str]]]:
    """Line (from 1) -> the codes and words that its trailing comment expects."""
    wanted = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", code), 1):
        if comment := COMMENT.search(line):
            parts = re.split(r"\s*\|\s*(?=AMP\d{3}: )", comment[1])
            wanted[number] = [(part[:6], part[8:].strip()) for part in parts]
    return wanted
