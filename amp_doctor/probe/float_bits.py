"""float32 and bfloat16 tensors by their bits: how often each exponent occurs, and the smallest magnitude.

The upper half of a float32, read as int16, goes through `bincount` with its sign masked: half the memory traffic, and
no conversion.
"""

from __future__ import annotations

import struct
import sys
import threading
from math import inf

import torch
from torch import Tensor

FIELDS = 256
BIAS = 127
NONFINITE = FIELDS - 1
# The upper half of a float32 lies second in memory on a little-endian machine.
_UPPER = 1 if sys.byteorder == "little" else 0
# Below this many elements the table of all upper halves costs more than the second shift that avoids it.
_SMALL = 16_384
# Elements that are masked at once, in memory that is used again, and those searched at once for the smallest.
_PIECE = 1 << 19
_SEARCHED = 1 << 17
# 0, 1, 2, 3 as four int16 in an int64.
_SPREAD = 0x0003_0002_0001_0000


def flat(value: Tensor) -> Tensor:
    """The elements in one dimension, without a copy when they lie densely in any order (channels_last, transposed)."""
    if value.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(value):
        # Not view(-1): a tensor of one element may have any stride, and keep it.
        return value.as_strided((value.numel(),), (1,), value.storage_offset())
    plain = value.reshape(-1)
    # The gradient of a sum is one element that is repeated; bits can only be viewed in elements that lie side by side.
    return plain if plain.is_contiguous() else plain.contiguous()


def upper_halves(values: Tensor) -> Tensor:
    """Sign, exponent and seven bits of the significand of a one-dimensional float32 or bfloat16 tensor, as int16."""
    bits = values.view(torch.int16)
    return bits[_UPPER::2] if values.dtype is torch.float32 else bits


def fields(values: Tensor, *, sparse: bool = False) -> tuple[Tensor, Tensor | None]:
    """int64[256], how often each exponent field occurs in a one-dimensional float32 or bfloat16 tensor; and
    int64[32768], how often each upper half does, for a tensor large enough to be counted that way.

    `sparse` is for tensors with many zeros, as after a ReLU: the last two bits of their halves are mixed.
    """
    if values.numel() < _SMALL:
        return torch.bincount((upper_halves(values) >> 7).bitwise_and_(0xFF), minlength=FIELDS), None
    halves = _bincount(values, sparse)
    return halves.view(FIELDS, 128).sum(1), halves


def _bincount(values: Tensor, sparse: bool) -> Tensor:
    """Piece by piece, in memory that is used again: fresh pages would cost as much as the counting."""
    total = None
    for piece in values.split(_PIECE):
        size = piece.numel()
        halves = torch.bitwise_and(upper_halves(piece), 0x7FFF, out=_memory.halves[:size])
        if sparse:
            # Increments of one counter wait for each other, so that zeros would take three times as long as
            # other values: every four neighbours take different counters, by their last two bits.
            halves[: size // 4 * 4].view(torch.int64).bitwise_xor_(_SPREAD)
        counted = torch.bincount(halves, minlength=FIELDS << 7)
        total = counted if total is None else total.add_(counted)
    return total  # type: ignore[return-value]  # a tensor has a piece


class _Memory(threading.local):
    """Room for one piece, per thread."""

    def __init__(self) -> None:
        # An inference tensor could not be written to outside of inference mode.
        with torch.inference_mode(mode=False):
            self.halves = torch.empty(_PIECE, dtype=torch.int16, device="cpu")


_memory = _Memory()


def smallest(values: Tensor) -> float:
    """The smallest non-zero magnitude of a finite one-dimensional float32 or bfloat16 tensor; infinity without one.

    Magnitudes compare like the integers of their bits, and subtracting 1 makes a zero the largest of them: no mask of
    booleans, which would take ten times as long.
    """
    whole = torch.int32 if values.dtype is torch.float32 else torch.int16
    largest = torch.iinfo(whole).max
    # In pieces: fresh memory for a copy of a large tensor costs four times what is done with it.
    pieces = values.view(whole).split(_SEARCHED) if values.numel() > _SEARCHED else (values.view(whole),)
    lows = [(piece & largest).sub_(1).bitwise_and_(largest).min() for piece in pieces]
    bits = lows[0] if len(lows) == 1 else torch.stack(lows).min()
    return inf if int(bits) == largest else float(bits.add_(1).view(values.dtype))


def upper_half(value: float) -> int:
    """Exponent and seven bits of the significand of a float32; 0 for what is not positive."""
    return int.from_bytes(struct.pack(">f", value)[:2]) if value > 0 else 0
