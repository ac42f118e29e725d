"""A finding and its trail -> the lines of source they stand on, in running order, the fault underlined last."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from amp_doctor.report.text import Line, cells, clean, source_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding, Span

TAB = 4
# Below this many columns for the source a frame would be unreadable; let the terminal wrap instead.
NARROWEST = 24


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns for the line numbers, and columns for the source beside them."""

    gutter: int
    room: int

    @property
    def margin(self) -> tuple[str, str]:
        """What stands left of a line of marks."""
        return f"{'':{self.gutter}} | ", "gutter"


@dataclass(frozen=True, slots=True)
class Step:
    """One place to show: a line of the trail, or the fault itself (`mark` is `^`)."""

    path: str
    cell: int | None
    span: Span
    message: str
    mark: str
    style: str


def frame(finding: Finding, sources: Mapping[str, str], width: int) -> list[Line]:
    """The code frame of `finding`; steps in files whose text is not at hand are told in words."""
    steps = [Step(r.path, r.cell, r.span, r.message, "-", "trail") for r in finding.related]
    last = ""
    if steps and (steps[-1].path, steps[-1].cell, steps[-1].span) == (finding.path, finding.cell, finding.span):
        # The trail ends where the fault is: its words belong beside the carets.
        last = steps.pop().message
    steps.append(Step(finding.path, finding.cell, finding.span, last, "^", finding.severity.value))
    gutter = max(len(str(step.span.line + 1)) for step in steps) + 1
    grid = Grid(gutter, max(width - gutter - 4, NARROWEST))
    out: list[Line] = []
    before: Step | None = None
    for step in steps:
        text = source_lines(sources, step.path, step.cell)
        home = before if before is not None else steps[-1]
        if (step.path, step.cell) != (home.path, home.cell):
            inside = f", cell {step.cell}" if step.cell is not None else ""
            out.append([(f"{'':{gutter}} > ", "gutter"), (f"{clean(step.path)}{inside}", "path")])
        if 0 < step.span.line <= len(text):
            out += _leading(before, step, text, grid)
            out += _marks(step, text[step.span.line - 1], grid)
        elif step.message:
            out.append([(f"{step.span.line:>{gutter}} | ", "gutter"), (clean(step.message), step.style)])
        before = step
    return out + _after(steps[-1], source_lines(sources, finding.path, finding.cell), grid)


def _leading(before: Step | None, step: Step, text: list[str], grid: Grid) -> list[Line]:
    """The source line of `step`, and what connects it with the step before: a line, an ellipsis, or nothing."""
    number = step.span.line
    out: list[Line] = []
    if before is None or (before.path, before.cell) != (step.path, step.cell):
        if number > 1 and text[number - 2].strip():
            out.append(_source(number - 1, text[number - 2], grid, "dim"))
    elif number == before.span.line:
        return []
    elif number == before.span.line + 2:
        out.append(_source(number - 1, text[number - 2], grid, "dim"))
    elif number != before.span.line + 1:
        out.append([(f"{'...':>{grid.gutter}}", "gutter")])
    raw = text[number - 1]
    return [*out, _source(number, raw, grid, "", _cropped(step, raw, grid.room))]


def _after(last: Step, text: list[str], grid: Grid) -> list[Line]:
    number = last.span.line + 1
    if not 1 < number <= len(text) or not text[number - 1].strip():
        return []
    return [_source(number, text[number - 1], grid, "dim")]


def _source(number: int, raw: str, grid: Grid, style: str, cropped: int = 0) -> Line:
    return [(f"{number:>{grid.gutter}} | ", "gutter"), (_fit(raw, grid.room, cropped), style)]


def _marks(step: Step, raw: str, grid: Grid) -> list[Line]:
    """The line of carets below a source line, and the step's message beside it or, for want of room, below."""
    start, length = _extent(step, raw)
    start -= _cropped(step, raw, grid.room)
    length = max(1, min(length, grid.room - start))
    marks: Line = [grid.margin, (" " * start + step.mark * length, step.style)]
    message = clean(step.message)
    if not message:
        return [marks]
    if start + length + 1 + cells(message) <= grid.room:
        return [[*marks, (" " + message, step.style)]]
    indent = start if grid.room - start >= NARROWEST else 0
    parts = wrap(message, max(grid.room - indent, NARROWEST))
    return [marks, *([grid.margin, (" " * indent + part, step.style)] for part in parts)]


def _extent(step: Step, raw: str) -> tuple[int, int]:
    """Where the marks of a step start, in cells from 0, and how many there are; a longer span ends with its line."""
    span = step.span
    end = span.end_column if span.end_line == span.line else len(raw.rstrip()) + 1
    start = cells(raw[: span.column - 1].expandtabs(TAB))
    return start, max(1, cells(raw[: max(end, span.column) - 1].expandtabs(TAB)) - start)


def _cropped(step: Step, raw: str, room: int) -> int:
    """How many characters to drop on the left so that the marked part of a long line is seen."""
    start, length = _extent(step, raw)
    return start - room // 4 if start + min(length, room // 2) > room else 0


def _fit(raw: str, room: int, cropped: int) -> str:
    text = clean(raw.rstrip().expandtabs(TAB))
    if cropped:
        text = "..." + text[cropped + 3 :]
    if cells(text) <= room:
        return text
    while cells(text) > room - 3:
        text = text[: room - 3] if len(text) > room - 3 else text[:-1]
    return text + "..."
