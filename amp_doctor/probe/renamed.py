"""A cast that changes nothing gives the tensor itself; under another name it is the cast all the same.

`z = h.float()` of a float32 tensor leaves one tensor with two names. In reduced precision they are two, so a call is
asked by which of them it was given it: the expression that the frame is at tells, where it names one of them alone.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from amp_doctor.probe.expressions import name_given, outside, parsed, place_of

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from torch import Tensor

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Renamed(Generic[Made]):
    """`old` and `new` are the names, in one frame, of what a cast was given and of what it gave."""

    frame: int
    code: CodeType
    old: str
    new: str
    was: Made

    def by_old_name(self, tensor: Tensor) -> bool:
        """Whether the call under way was given the tensor by the name that it had before the cast."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (id(frame) != self.frame or frame.f_code is not self.code):
            frame = frame.f_back
        if frame is None:
            return False
        names = frame.f_locals
        known = self.new in names and names.get(self.old) is tensor
        return known and _given(self.code, frame.f_lasti) & {self.old, self.new} == {self.old}


def renamed(was: Made) -> Renamed[Made] | None:
    """Of the cast under way: `was` is what the tensor is by its old name. None where it gives no other name."""
    frame = outside(sys._getframe(1))
    names = _names(frame.f_code, frame.f_lasti) if frame is not None else None
    return Renamed(id(frame), frame.f_code, *names, was) if frame is not None and names is not None else None


@cache
def _names(code: CodeType, instruction: int) -> tuple[str, str] | None:
    place = place_of(code, instruction)
    if place is None:
        return None
    match parsed(code, place):
        case ast.Call(func=ast.Attribute(value=ast.Name(old))):
            new = name_given(code, place)
            return (old, new) if new not in ("", old) else None
    return None


@cache
def _given(code: CodeType, instruction: int) -> frozenset[str]:
    """The names that the expression hands to its own operation, and to none inside it."""
    place = place_of(code, instruction)
    match parsed(code, place) if place is not None else None:
        case ast.Call(func, args, keywords):
            own = [func.value] if isinstance(func, ast.Attribute) else []
            values = [*own, *args, *(one.value for one in keywords)]
        case ast.BinOp(left, _, right):
            values = [left, right]
        case ast.Compare(left, _, others):
            values = [left, *others]
        case ast.UnaryOp(_, value) | ast.Attribute(value) | ast.Subscript(value):
            values = [value]
        case _:
            values = []
    return frozenset(one.id for value in values for one in _parts(value) if isinstance(one, ast.Name))


def _parts(value: ast.expr) -> list[ast.expr]:
    """A value, or those in a tuple or list that is written out."""
    return value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
