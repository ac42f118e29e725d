"""Paragraphs, labels and headings -> styled lines that keep to a width."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from amp_doctor.report.text import Line, cells, clean

if TYPE_CHECKING:
    from collections.abc import Iterable

# Text set narrower than this is harder to read than lines that the terminal breaks.
NARROWEST = 20


def paragraph(text: str, width: int, indent: int = 2, style: str = "") -> list[Line]:
    """`text` in lines of `width` columns, `indent` of them blank."""
    return [[(" " * indent + part, style)] for part in wrap(clean(text), max(width - indent, NARROWEST))]


def labelled(label: str, text: str, style: str, width: int, room: int = 5) -> list[Line]:
    """`  label: text`, continued below the text; `room` columns are kept for the label."""
    parts = wrap(clean(text), max(width - room - 5, NARROWEST))
    return [
        [(f"  {clean(label) + ':' if first and label else '':{room}} ", "dim"), (part, style)]
        for first, part in ((index == 0, part) for index, part in enumerate(parts))
    ]


def beside(label: str, text: str, style: str, width: int, room: int) -> list[Line]:
    """`  label  text`, continued below the text: a row of a table whose last column is words."""
    parts = wrap(clean(text), max(width - room - 2, NARROWEST))
    return [[(f"  {label if index == 0 else '':{room}}", ""), (part, style)] for index, part in enumerate(parts)]


def bullets(texts: Iterable[str], width: int, style: str = "") -> list[Line]:
    """`  - text`, one paragraph each."""
    return [
        [("  - " if index == 0 else "    ", "dim"), (part, style)]
        for text in texts
        for index, part in enumerate(wrap(clean(text), max(width - 4, NARROWEST)))
    ]


def section(title: str, lines: list[Line]) -> list[Line]:
    """A heading with its lines and a blank one after; nothing at all when there is nothing to say."""
    return [[(title, "name")], *lines, []] if lines else []


def fitted(text: str, room: int) -> str:
    """`text` in at most `room` columns, the middle left out: names of layers differ at both ends."""
    text = clean(text)
    if cells(text) <= room:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while head and cells(head) + cells(tail) > room - 3:
        head, tail = (head[:-1], tail) if cells(head) > (room - 3) // 3 or not tail else (head, tail[1:])
    return f"{head}...{tail}"
