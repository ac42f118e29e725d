"""From which tensor a dtype comes that a call is given: `m.to(h.dtype)` must follow `h` in another precision.

A dtype cannot be followed as a value, there is only one of each. What is known is at which instruction of which frame
it was read; the bytecode before a call tells which instruction loaded its argument: the attribute itself, or a name
that was assigned it. Where the code does not tell, the dtype is a constant, as `torch.float32` is.
"""

from __future__ import annotations

import dis
import sys
import weakref
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from torch import Tensor

# Frames of torch between a call that the script makes and the one that is seen.
_BETWEEN = frozenset(("torch.overrides", "torch.nn.functional", "torch.functional"))
# So many instructions are looked at before a call: its arguments.
_ARGUMENTS = 24
_CONSTANTS = frozenset(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))


class AskedDtypes:
    """Where dtypes were read from tensors, in one step."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, CodeType, int], tuple[weakref.ref[Tensor], torch.dtype]] = {}

    def read(self, tensor: Tensor, dtype: torch.dtype) -> None:
        """`tensor.dtype` was read by the nearest frame outside."""
        frame = _outside(sys._getframe(1))
        if frame is not None:
            self._read[id(frame), frame.f_code, frame.f_lasti] = weakref.ref(tensor), dtype

    def asked(self, dtype: torch.dtype) -> Tensor | None:
        """The tensor that gave the dtype of the call under way; None when it is a constant, or nobody knows."""
        if not self._read:
            return None
        frame = _outside(sys._getframe(1))
        if frame is None:
            return None
        for offset in _origins(frame.f_code, frame.f_lasti):
            found = self._read.get((id(frame), frame.f_code, offset))
            if found is not None and found[1] is dtype:
                return found[0]()
        return None


def chained() -> bool:
    """Whether the call under way is followed by another on its result, which gets no name: `h.float().abs()`."""
    frame = _outside(sys._getframe(1))
    if frame is None:
        return False
    instructions, offsets = _instructions(frame.f_code)
    after = bisect_right(offsets, frame.f_lasti)
    return after < len(offsets) and instructions[after].opname in ("LOAD_METHOD", "LOAD_ATTR")


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        frame.f_globals.get("__name__") in _BETWEEN or frame.f_globals.get("__name__", "").startswith("amp_doctor.")
    ):
        frame = frame.f_back
    return frame


_CODES: dict[CodeType, tuple[list[dis.Instruction], list[int]]] = {}
_ORIGINS: dict[tuple[CodeType, int], tuple[int, ...]] = {}


def _origins(code: CodeType, call: int) -> tuple[int, ...]:
    """The instructions that may have read the dtype which the call at an offset is given."""
    known = _ORIGINS.get((code, call))
    if known is None:
        known = _ORIGINS[code, call] = _looked_up(code, call)
    return known


def _looked_up(code: CodeType, call: int) -> tuple[int, ...]:
    instructions, offsets = _instructions(code)
    end = bisect_left(offsets, call)
    for one in reversed(instructions[max(0, end - _ARGUMENTS) : end]):
        names = _names(one)
        if one.opname == "LOAD_ATTR" and "dtype" in names:
            return (one.offset,)
        if one.opname in ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME") and not _CONSTANTS.isdisjoint(names):
            return ()
        if one.opname.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_DEREF")):
            assigned = [offset for name in names for offset in _assigned(instructions, name)]
            if assigned:
                return tuple(reversed(assigned))
        if one.opname.startswith("STORE"):
            break
    return ()


def _assigned(instructions: list[dis.Instruction], name: str) -> list[int]:
    """Where `name = x.dtype` reads it."""
    return [
        before.offset
        for before, one in pairwise(instructions)
        if one.opname.startswith("STORE_")
        and _names(one)[:1] == (name,)
        and "dtype" in _names(before)
        and before.opname == "LOAD_ATTR"
    ]


def _instructions(code: CodeType) -> tuple[list[dis.Instruction], list[int]]:
    known = _CODES.get(code)
    if known is None:
        found = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "EXTENDED_ARG")]
        known = _CODES[code] = found, [one.offset for one in found]
    return known


def _names(one: dis.Instruction) -> tuple[Any, ...]:
    return one.argval if isinstance(one.argval, tuple) else (one.argval,)
