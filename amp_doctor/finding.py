"""The one value that checks, probe and reports share: a finding, where it is and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is: ERROR trains silently wrong or crashes, WARNING probably so, NOTE is cost or opinion."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """2 for ERROR, 1 for WARNING, 0 for NOTE, so that thresholds compare."""
        return ("note", "warning", "error").index(self.value)


class Confidence(StrEnum):
    """How sure the verdict is: HIGH when every fact was seen in the source, LOW when inferred from use."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Applicability(StrEnum):
    """SAFE keeps behaviour and comments (or mends a call that could only raise); UNSAFE changes numerics."""

    SAFE = "safe"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Lines from 1, columns from 1 in characters, end column exclusive.

    In a notebook the lines are those of `Source.code`; `Source.place` turns them into cell and line.
    """

    line: int
    column: int
    end_line: int
    end_column: int


# The very span of what the probe has found and knows no line for; formats that want one get the first.
NOWHERE = Span(1, 1, 1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Related:
    """One step of the trail that led to a finding."""

    path: str
    span: Span
    message: str
    cell: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace bytes `start:end` of the UTF-8 encoded `Source.code` by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that belong together: all are applied or none."""

    applicability: Applicability
    message: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis at one place. `related` is the trail of lines in the order they run.

    `layer` is the module that a diagnosis of the probe is about; None for the linter's.
    """

    code: str
    name: str
    severity: Severity
    message: str
    path: str
    span: Span
    confidence: Confidence = Confidence.HIGH
    related: tuple[Related, ...] = ()
    fix: Fix | None = None
    suppressed: bool = False
    cell: int | None = None
    layer: str | None = None

    @property
    def sort_key(self) -> tuple[str, Span, str, str]:
        """Findings are reported in the order of path, place and code."""
        return (self.path, self.span, self.code, self.message)
