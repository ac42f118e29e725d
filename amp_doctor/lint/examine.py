"""One file's bytes -> its FileReport, whatever is in them: the net that no crash on one file falls through."""

from __future__ import annotations

from ast import PyCF_ONLY_AST
from typing import TYPE_CHECKING

from amp_doctor import catalog
from amp_doctor.errors import ReadError
from amp_doctor.finding import Finding, Severity, Span
from amp_doctor.lint.logical import layout, shallow
from amp_doctor.lint.result import FileReport
from amp_doctor.lint.source import parse_source
from amp_doctor.lint.suppress import pragmas
from amp_doctor.lint.syntax import SyntaxFault

if TYPE_CHECKING:
    from pathlib import Path

    from amp_doctor.lint.project import Project
    from amp_doctor.lint.source import Source

# Python itself refuses more, and libcst takes time in the square of it.
DEEPEST = 200


def examine(
    raw: bytes, path: str, file: Path | None, project: Project | None, torch_version: tuple[int, ...] | None = None
) -> FileReport:
    """Findings and suppression comments of one file; never raises an Exception."""
    try:
        source = parse_source(raw, path, file)
    except ReadError as error:
        return FileReport(path, error=error.reason)
    try:
        return _analysed(source, project, torch_version)
    except SyntaxFault as fault:
        return FileReport(path, (_syntax_error(source, fault),))
    except ReadError as error:  # too large
        return FileReport(path, error=error.reason)
    except Exception as crash:  # noqa: BLE001 - the net of rule AMP003: a crash costs one file, never the run
        return FileReport(path, (crashed(path, f"{_words(crash)}{_place(crash)}"),))


def crashed(path: str, words: str) -> Finding:
    """AMP003 for a file that could not be analysed at all."""
    message = f"the analysis of this file failed, it was not checked: {words}; please report this"
    return Finding("AMP003", _name("AMP003", "check-crashed"), Severity.WARNING, message, path, Span(1, 1, 1, 1))


def _analysed(source: Source, project: Project | None, torch_version: tuple[int, ...] | None) -> FileReport:
    from amp_doctor.lint.analyse import analyse
    from amp_doctor.lint.project import Project

    if "\0" in source.code:
        line = source.code.count("\n", 0, source.code.index("\0")) + 1
        raise SyntaxFault("source code cannot contain null bytes", line, 1)
    if not shallow(source.code, DEEPEST) and layout(source.code).depth > DEEPEST:
        raise SyntaxFault(f"brackets are nested more than {DEEPEST} deep", 1, 1)
    analysis = analyse(source, project or Project(), torch_version)
    return FileReport(source.path, analysis.findings, None, analysis.dependencies, analysis.silences, pragmas(source))


def _syntax_error(source: Source, fault: SyntaxFault) -> Finding:
    """AMP001, in the words of Python itself where it agrees: a parser generator lists what it expected."""
    message, line, column = fault.message, fault.line, fault.column
    try:
        compile(source.code, source.path, "exec", PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        if error.lineno:
            message, line, column = error.msg, error.lineno, max(error.offset or 1, 1)
    except (ValueError, RecursionError, MemoryError):
        pass
    span = Span(line, column, line, column + 1)
    return Finding(
        "AMP001",
        _name("AMP001", "syntax-error"),
        Severity.ERROR,
        f"this file does not parse: {message}",
        source.path,
        span,
    )


def _name(code: str, otherwise: str) -> str:
    return catalog.codes().get(code, otherwise)


def _words(crash: Exception) -> str:
    text = " ".join(str(crash).split())
    return f"{type(crash).__name__}: {text}" if text else type(crash).__name__


def _place(crash: Exception) -> str:
    """Where in our own source it went wrong, for the report that we ask for."""
    trail = crash.__traceback__
    place = ""
    while trail is not None:
        file = trail.tb_frame.f_code.co_filename.replace("\\", "/")
        if "/amp_doctor/" in file:
            place = f" (amp_doctor/{file.rpartition('/amp_doctor/')[2]}:{trail.tb_lineno})"
        trail = trail.tb_next
    return place
