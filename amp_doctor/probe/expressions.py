"""Where a frame is in its source, as Python keeps it for tracebacks, and the expression that stands there."""

from __future__ import annotations

import ast
import linecache
import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType, FrameType

# Frames of torch between a call that the script makes and the one that is seen.
_BETWEEN = frozenset(("torch.overrides", "torch.nn.functional", "torch.functional"))
_ASSIGNED = re.compile(rb"\s*(\w+)\s*=\s*")

# A piece of a file, as code objects and syntax trees give it: line, last line, and columns, in bytes.
Place = tuple[int, int, int, int]


def outside(frame: FrameType | None) -> FrameType | None:
    """The nearest frame that is neither ours nor one of torch's on the way to us."""
    while frame is not None and (
        frame.f_globals.get("__name__") in _BETWEEN or frame.f_globals.get("__name__", "").startswith("amp_doctor.")
    ):
        frame = frame.f_back
    return frame


def place_of(code: CodeType, instruction: int) -> Place | None:
    """None where Python was told to forget it."""
    line, last, column, end = next(islice(code.co_positions(), instruction // 2, None))
    return None if line is None or last is None or column is None or end is None else (line, last, column, end)


def name_given(code: CodeType, place: Place) -> str:
    """The name that the expression at a place is assigned to, where nothing stands before it on its line; or empty."""
    line, _, column, _ = place
    named = _ASSIGNED.fullmatch(line_of(code, line)[:column])
    return named[1].decode() if named else ""


def parsed(code: CodeType, place: Place) -> ast.expr | None:
    """The expression at a place; the places inside it are those in the file."""
    line, last, column, end = place
    rows = [line_of(code, number) for number in range(line, last + 1)]
    rows[-1] = rows[-1][:end]
    rows[0] = b" " * column + rows[0][column:]
    try:
        tree = ast.parse(b"(" + b"\n" * line + b"".join(rows) + b")", mode="eval")
    except (SyntaxError, ValueError):
        return None
    ast.increment_lineno(tree, -1)
    return tree.body


def line_of(code: CodeType, number: int) -> bytes:
    """A line of the file that the code comes from; empty where there is none."""
    return linecache.getline(code.co_filename, number).encode()
