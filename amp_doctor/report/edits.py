"""Byte edits -> the lines and columns that JSON and SARIF speak of."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Region:
    """Replace what stands between two places by `text`; lines and columns from 1, the end exclusive."""

    start_line: int
    start_column: int
    end_line: int
    end_column: int
    text: str


def regions(finding: Finding, sources: Mapping[str, str]) -> list[Region]:
    """The edits of the finding's fix; none when the text they belong to is not at hand."""
    code = sources.get(f"{finding.path}:{finding.cell}", sources.get(finding.path))
    if finding.fix is None or code is None:
        return []
    encoded = code.encode()
    starts = [0, *(index + 1 for index, byte in enumerate(encoded) if _ends_line(encoded, index, byte))]

    def point(offset: int) -> tuple[int, int]:
        line = bisect_right(starts, offset)
        return line, len(encoded[starts[line - 1] : offset].decode(errors="replace")) + 1

    return [Region(*point(edit.start), *point(edit.end), edit.text) for edit in finding.fix.edits]


def _ends_line(encoded: bytes, index: int, byte: int) -> bool:
    return byte == 0x0A or (byte == 0x0D and encoded[index + 1 : index + 2] != b"\n")
