"""Styled lines of text -> a string, plain or with colours; and the width of characters on a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.finding import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amp_doctor.finding import Finding, Span

# A line is a list of (text, style); the styles are names of this table, in the words of rich.
Line = list[tuple[str, str]]
STYLES = {
    "": "",
    "path": "bold",
    "code": "bold",
    "name": "bold",
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "good": "bold green",
    "gutter": "blue",
    "trail": "cyan",
    "dim": "dim",
    "fix": "green",
}

# A linted file must not be able to move the cursor or change the colours of the reader's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def plain(lines: Iterable[Line]) -> str:
    """The text alone."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def rendered(lines: Iterable[Line], width: int, color: bool) -> str:
    """The text as a terminal of `width` columns shows it; rich is loaded only for colours."""
    if not color:
        return plain(lines)
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    file = StringIO()
    console = Console(
        file=file, width=width, force_terminal=True, color_system="standard", legacy_windows=False, _environ={}
    )
    for line in lines:
        text = Text.assemble(*((part, STYLES[style]) for part, style in line))
        console.print(text, soft_wrap=True, highlight=False)
    return file.getvalue()


def clean(text: str) -> str:
    """`text` with control characters replaced, so that it cannot act on a terminal."""
    return _CONTROL.sub("?", text)


def cells(text: str) -> int:
    """Columns that `text` takes on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def source_lines(sources: Mapping[str, str], path: str, cell: int | None) -> list[str]:
    """The lines of a file, or of a cell when the cells have texts of their own; empty when not at hand."""
    text = sources.get(f"{path}:{cell}", sources.get(path))
    # Not splitlines(): a form feed inside a line does not end it for Python.
    return [] if text is None else text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def source_line(sources: Mapping[str, str], path: str, line: int, cell: int | None = None) -> str:
    """A line of source without its indentation; empty when it is not at hand."""
    lines = source_lines(sources, path, cell)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def place(finding: Finding) -> str:
    """`path:line:column`, with the cell when it is a notebook's; of what the probe has found no line for, the path."""
    if finding.span is NOWHERE:
        return clean(finding.path)
    return located(finding.path, finding.span, finding.cell)


def headline(finding: Finding) -> Line:
    """`train.py:3:5: error AMP201 clip-before-unscale`."""
    severity = finding.severity.value
    return [
        (f"{place(finding)}: ", "path"),
        (severity, severity),
        (f" {finding.code}", severity),
        (f" {finding.name}", "name"),
    ]


def located(path: str, span: Span, cell: int | None) -> str:
    """`path:line:column` or `path:cell 3:line:column`."""
    inside = f"cell {cell}:" if cell is not None else ""
    return f"{clean(path)}:{inside}{span.line}:{span.column}"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
