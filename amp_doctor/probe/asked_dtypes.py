"""From which tensor a dtype comes that a call is given: `m.to(h.dtype)` must follow `h` in another precision.

A dtype cannot be followed as a value, there is only one of each. But Python knows which piece of the source a frame is
at: where `h.dtype` is read, that place is kept, and the name that it is given there; the arguments of a call, as they
are written, lead back to one of the two. Where there is no source, or it does not tell, the dtype is a constant, as
`torch.float32` is.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import weakref
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

    import torch
    from torch import Tensor

# Frames of torch between a call that the script makes and the one that is seen.
_BETWEEN = frozenset(("torch.overrides", "torch.nn.functional", "torch.functional"))
_ASSIGNED = re.compile(rb"\s*(\w+)\s*=\s*")

# A piece of a file, as code objects and syntax trees give it: line, last line, and columns, in bytes.
Place = tuple[int, int, int, int]


class AskedDtypes:
    """Where dtypes were read from tensors, in one step."""

    def __init__(self) -> None:
        # By the frame, and the place of the expression or the name of the variable in it.
        self._read: dict[tuple[int, CodeType, Place | str], tuple[weakref.ref[Tensor], torch.dtype]] = {}

    def read(self, tensor: Tensor, dtype: torch.dtype) -> None:
        """`tensor.dtype` was read by the nearest frame outside."""
        frame = _outside(sys._getframe(1))
        if frame is not None:
            for where in _reading(frame.f_code, frame.f_lasti):
                self._read[id(frame), frame.f_code, where] = weakref.ref(tensor), dtype

    def asked(self, dtype: torch.dtype) -> Tensor | None:
        """The tensor that gave the dtype of the call under way; None when it is a constant, or nobody knows."""
        if not self._read:
            return None
        frame = _outside(sys._getframe(1))
        if frame is None:
            return None
        for where in _arguments(frame.f_code, frame.f_lasti):
            found = self._read.get((id(frame), frame.f_code, where))
            if found is not None and found[1] is dtype:
                return found[0]()
        return None


def chained() -> bool:
    """Whether the call under way is followed by another on its result, which gets no name: `h.float().abs()`."""
    frame = _outside(sys._getframe(1))
    return frame is not None and _goes_on(frame.f_code, frame.f_lasti)


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        frame.f_globals.get("__name__") in _BETWEEN or frame.f_globals.get("__name__", "").startswith("amp_doctor.")
    ):
        frame = frame.f_back
    return frame


@cache
def _reading(code: CodeType, instruction: int) -> tuple[Place | str, ...]:
    """The place of the attribute that an instruction reads, and the name that it is assigned to."""
    place = _place(code, instruction)
    if place is None:
        return ()
    line, _, column, _ = place
    named = _ASSIGNED.fullmatch(_line(code, line)[:column])
    return (place, named[1].decode()) if named else (place,)


@cache
def _arguments(code: CodeType, instruction: int) -> tuple[Place | str, ...]:
    """The attributes, by their places, and the names among the arguments of the call that an instruction makes."""
    place = _place(code, instruction)
    call = _parsed(code, place) if place is not None else None
    if not isinstance(call, ast.Call):
        return ()
    values = [*call.args, *(one.value for one in call.keywords)]
    return tuple(where for value in values for where in _origins(value))


def _origins(value: ast.expr) -> Iterator[Place | str]:
    match value:
        case ast.Name(name):
            yield name
        case ast.Attribute(attr="dtype", end_lineno=int(last), end_col_offset=int(end)):
            yield value.lineno, last, value.col_offset, end
        case ast.IfExp(_, one, other):
            yield from _origins(one)
            yield from _origins(other)
        case ast.BoolOp(_, values):
            for one in values:
                yield from _origins(one)


@cache
def _goes_on(code: CodeType, instruction: int) -> bool:
    place = _place(code, instruction)
    if place is None:
        return False
    _, last, _, end = place
    rest = _line(code, last)[end:].strip() or _line(code, last + 1).strip()
    return rest.startswith(b".")


def _place(code: CodeType, instruction: int) -> Place | None:
    """None where Python was told to forget it."""
    line, last, column, end = next(islice(code.co_positions(), instruction // 2, None))
    return None if line is None or last is None or column is None or end is None else (line, last, column, end)


def _parsed(code: CodeType, place: Place) -> ast.expr | None:
    """The expression at a place; the places inside it are those in the file."""
    line, last, column, end = place
    rows = [_line(code, number) for number in range(line, last + 1)]
    rows[-1] = rows[-1][:end]
    rows[0] = b" " * column + rows[0][column:]
    try:
        tree = ast.parse(b"(" + b"\n" * line + b"".join(rows) + b")", mode="eval")
    except (SyntaxError, ValueError):
        return None
    ast.increment_lineno(tree, -1)
    return tree.body


def _line(code: CodeType, number: int) -> bytes:
    return linecache.getline(code.co_filename, number).encode()
