"""From which tensor a dtype comes that a call is given: `m.to(h.dtype)` must follow `h` in another precision.

A dtype cannot be followed as a value, there is only one of each. But Python knows which piece of the source a frame is
at: where `h.dtype` is read, that place is kept, and the name that it is given there; the arguments of a call, as they
are written, lead back to one of the two. Where there is no source, or it does not tell, the dtype is a constant, as
`torch.float32` is.
"""

from __future__ import annotations

import ast
import sys
import weakref
from functools import cache
from typing import TYPE_CHECKING

from amp_doctor.probe.expressions import Place, line_of, name_given, outside, parsed, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    import torch
    from torch import Tensor


class AskedDtypes:
    """Where dtypes were read from tensors, in one step."""

    def __init__(self) -> None:
        # By the frame, and the place of the expression or the name of the variable in it.
        self._read: dict[tuple[int, CodeType, Place | str], tuple[weakref.ref[Tensor], torch.dtype]] = {}

    def read(self, tensor: Tensor, dtype: torch.dtype) -> None:
        """`tensor.dtype` was read by the nearest frame outside."""
        frame = outside(sys._getframe(1))
        if frame is not None:
            for where in _reading(frame.f_code, frame.f_lasti):
                self._read[id(frame), frame.f_code, where] = weakref.ref(tensor), dtype

    def asked(self, dtype: torch.dtype) -> Tensor | None:
        """The tensor that gave the dtype of the call under way; None when it is a constant, or nobody knows."""
        if not self._read:
            return None
        frame = outside(sys._getframe(1))
        if frame is None:
            return None
        for where in _arguments(frame.f_code, frame.f_lasti):
            found = self._read.get((id(frame), frame.f_code, where))
            if found is not None and found[1] is dtype:
                return found[0]()
        return None


def chained() -> bool:
    """Whether the call under way is followed by another on its result, which gets no name: `h.float().abs()`."""
    frame = outside(sys._getframe(1))
    return frame is not None and _goes_on(frame.f_code, frame.f_lasti)


@cache
def _reading(code: CodeType, instruction: int) -> tuple[Place | str, ...]:
    """The place of the attribute that an instruction reads, and the name that it is assigned to."""
    place = place_of(code, instruction)
    if place is None:
        return ()
    named = name_given(code, place)
    return (place, named) if named else (place,)


@cache
def _arguments(code: CodeType, instruction: int) -> tuple[Place | str, ...]:
    """The attributes, by their places, and the names among the arguments of the call that an instruction makes."""
    place = place_of(code, instruction)
    call = parsed(code, place) if place is not None else None
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
    place = place_of(code, instruction)
    if place is None:
        return False
    _, last, _, end = place
    rest = line_of(code, last)[end:].strip() or line_of(code, last + 1).strip()
    return rest.startswith(b".")
