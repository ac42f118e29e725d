"""Finding -> a fingerprint that survives moved lines: path, rule, the text of the line, and which one of its kind."""

from __future__ import annotations

from collections import Counter
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

from amp_doctor.finding import NOWHERE
from amp_doctor.report.text import source_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amp_doctor.finding import Finding


def fingerprints(findings: Iterable[Finding], sources: Mapping[str, str]) -> list[str]:
    """One `hash:occurrence` per finding, in their order; spaces in the line do not count."""
    seen: Counter[tuple[str, str, str]] = Counter()
    out = []
    split = cache(lambda path, cell: source_lines(sources, path, cell))
    for finding in findings:
        lines, line = split(finding.path, finding.cell), finding.span.line
        known = 0 < line <= len(lines) and finding.span is not NOWHERE
        text = "".join(lines[line - 1].split()) if known else finding.message
        kind = (finding.path, finding.code, text)
        seen[kind] += 1
        out.append(f"{sha256(chr(0).join(kind).encode(errors='replace')).hexdigest()[:16]}:{seen[kind]}")
    return out
