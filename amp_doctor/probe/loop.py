"""One pass over a float32 tensor that finds its exponents and extremes, compiled by Numba (the extra `fast`).

It runs in the thread of the step and takes a third of the time of torch's own operators: they go over the tensor five
times, and wake threads that the step is about to use. To import this module is to compile it, once per machine.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# So many numbers stay in the first-level cache from the first of the two inner loops to the second.
_BLOCK = 2048
# What `smallest` is when nothing but zeros was met.
NOTHING = 0x7FFF_FFFF


def _count(bits, total):  # type: ignore[no-untyped-def]  # Numba knows the types by the signature below
    # Four tables: increments of one counter wait for each other, and neighbours often share their exponent.
    tables = np.zeros((4, 256), np.int64)
    largest, lowest, smallest = np.int32(-0x8000_0000), np.int32(0x7FFF_FFFF), np.int32(0x7FFF_FFFF)
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK]
        # Two loops: the compiler makes vector instructions of this one.
        for i in range(block.size):
            value = block[i]
            ordered = np.int32(value ^ ((value >> np.int32(31)) & np.int32(0x7FFF_FFFF)))
            # Less one, a zero is the largest of magnitudes.
            magnitude = np.int32(((value & np.int32(0x7FFF_FFFF)) - np.int32(1)) & np.int32(0x7FFF_FFFF))
            largest = max(largest, ordered)
            lowest = min(lowest, ordered)
            smallest = min(smallest, magnitude)
        fours = block.size // 4 * 4
        for i in range(0, fours, 4):
            tables[0, (np.uint32(block[i]) >> np.uint32(23)) & np.uint32(255)] += 1
            tables[1, (np.uint32(block[i + 1]) >> np.uint32(23)) & np.uint32(255)] += 1
            tables[2, (np.uint32(block[i + 2]) >> np.uint32(23)) & np.uint32(255)] += 1
            tables[3, (np.uint32(block[i + 3]) >> np.uint32(23)) & np.uint32(255)] += 1
        for i in range(fours, block.size):
            tables[0, (np.uint32(block[i]) >> np.uint32(23)) & np.uint32(255)] += 1
    for field in range(256):
        tables[0, field] += tables[1, field] + tables[2, field] + tables[3, field]
        total[field] += tables[0, field]
    return tables[0, 0], tables[0, 255], largest, lowest, smallest


def _compiled() -> Callable[[Any, Any], tuple[int, int, int, int, int]]:
    if getattr(numba.config, "DISABLE_JIT", 0):
        raise ImportError("NUMBA_DISABLE_JIT is set: the loop would run as Python")
    signature = "UniTuple(int64, 5)(int32[::1], int64[::1])"
    logger = logging.getLogger("numba")
    level = logger.level
    logger.setLevel(logging.WARNING)  # a program that logs everything would be told how the compiler went about it
    try:
        try:
            return numba.njit([signature], nogil=True, cache=True)(_count)
        except RuntimeError:  # nowhere to keep what was compiled
            return numba.njit([signature], nogil=True)(_count)
    finally:
        logger.setLevel(level)


# count(bits, total), int32[n] and int64[256]: adds to `total` how often each exponent field occurs; returns how many
# fields are 0, how many are 255, the largest and the lowest number as keys, and the smallest magnitude's bits less one.
count = _compiled()


def number(key: int) -> float:
    """The float32 behind a key: its bits, those of a negative magnitude turned round, to be ordered like it."""
    bits = key ^ NOTHING if key < 0 else key
    value: float = struct.unpack("=f", struct.pack("=i", bits))[0]
    return value
