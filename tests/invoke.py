"""The command line, run in this process; and an analyser that finds what the tests plant."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from amp_doctor.cli import status_of
from amp_doctor.finding import Applicability, Edit, Finding, Fix, Severity, Span
from amp_doctor.lint.analyse import Analysis
from amp_doctor.lint.syntax import SyntaxFault

if TYPE_CHECKING:
    from amp_doctor.lint.project import Project
    from amp_doctor.lint.source import Source

NAMES = {"AMP201": "clip-before-unscale", "AMP301": "backward-in-autocast", "AMP101": "deprecated-autocast"}
SEVERITIES = {"AMP201": Severity.ERROR, "AMP301": Severity.WARNING, "AMP101": Severity.NOTE}


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    out: str
    err: str


def amp_doctor(*arguments: str, stdin: bytes = b"") -> Done:
    """Run a command as `main` does, and tell what came of it."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    typed = io.TextIOWrapper(io.BytesIO(stdin))
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", typed):
        status = status_of(list(arguments))
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Done(status, *texts)


def planted(source: Source, project: Project, torch_version: tuple[int, ...] | None = None) -> Analysis:
    """A stand-in for `analyse`.

    `AMP201!` in a line is a finding without a fix; `bad_201` one whose unsafe fix writes `good`, `soft_201` one
    whose safe fix does; `worse_201` one whose fix makes a new fault, `stuck_201` one whose fix changes nothing
    for the better, `wreck_201` one whose fix does not parse. `crash` raises, `fault` does not parse.
    """
    found = []
    if "crash" in source.code:
        raise ZeroDivisionError("planted")
    if "fault" in source.code:
        raise SyntaxFault("planted", 1, 1)
    start = 0
    for number, line in enumerate(source.code.splitlines(keepends=True), 1):
        for code, name in NAMES.items():
            for word, text, applicability in (
                (f"{code}!", None, None),
                (f"bad_{code[3:]}", "good", Applicability.UNSAFE),
                (f"soft_{code[3:]}", "good", Applicability.SAFE),
                (f"worse_{code[3:]}", "AMP301! AMP301!", Applicability.SAFE),
                (f"stuck_{code[3:]}", f"stuck_{code[3:]} ", Applicability.SAFE),
                (f"wreck_{code[3:]}", "fault", Applicability.SAFE),
            ):
                column = line.find(word)
                while column >= 0:
                    fix = None
                    if text is not None and applicability is not None:
                        at = start + len(line[:column].encode())
                        fix = Fix(applicability, f"write {text}", (Edit(at, at + len(word), text),))
                    span = Span(number, column + 1, number, column + 1 + len(word))
                    message = f"planted {word}"
                    found.append(Finding(code, name, SEVERITIES[code], message, source.path, span, fix=fix))
                    column = line.find(word, column + 1)
        start += len(line.encode())
    return Analysis(tuple(found), silences=source.code.count("silent"))
