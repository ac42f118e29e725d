"""What a lint run hands to the report: every finding in order, what could not be read, and the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.finding import Finding
    from amp_doctor.lint.suppress import Pragma


@dataclass(frozen=True, slots=True)
class InputError:
    """A file or directory that could not be read; the others were checked all the same."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class FileReport:
    """What one file gave before selection and suppression: its findings, those in other first-party files included.

    `dependencies` are the first-party files it was read together with; the cache watches them too.
    `error` says why the file could not be read; `pragmas` are its comments that may hide findings; `lasting` is
    False when another try may end otherwise.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    dependencies: tuple[str, ...] = ()
    silences: int = 0
    pragmas: tuple[Pragma, ...] = ()
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class LintReport:
    """The whole run. `findings` are sorted by place, selected, and marked where suppressed; `silences`
    counts the places the analyser kept quiet about; `fixed` counts the fixes applied or shown by --diff."""

    findings: tuple[Finding, ...] = ()
    errors: tuple[InputError, ...] = ()
    files: int = 0
    silences: int = 0
    fixed: int = 0
