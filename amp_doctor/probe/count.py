"""Tensor -> exponent counts and extremes.

Counting is what a probe costs. With Numba one compiled loop does it (loop.py: 0.3 nanoseconds per element, measured).
Without, the upper half of a float32, read as int16, goes through `bincount` with its sign masked: half the memory
traffic, and no conversion (half a nanosecond, and ten microseconds per tensor).
"""

from __future__ import annotations

import importlib
import struct
import sys
import threading
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe.dtypes import dtype_name

if TYPE_CHECKING:
    from types import ModuleType

loop: ModuleType | None
try:
    loop = importlib.import_module("amp_doctor.probe.loop")
except ImportError:  # Numba is not installed, or does not know this version of numpy or Python
    loop = None

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
_SMALLEST_NORMAL = 2.0**-126


def countable(value: Any) -> Tensor | None:
    """The plain floating-point tensor to count in `value`, or None: not a tensor, empty, complex, quantized, fake."""
    if not isinstance(value, Tensor):
        return None
    if hasattr(value, "to_local"):  # a DTensor: this rank's shard
        value = value.to_local()
    if type(value) not in _PLAIN:  # a parameter of a lazy module answers nothing else
        return None
    if value.layout is not torch.strided:
        value = value.detach()._values() if value.layout is torch.sparse_coo else None
    if value is None or not value.is_floating_point() or not value.numel() or value.device.type == "meta":
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return None
    plain: Tensor = value.detach()
    return plain


_PLAIN = {Tensor, torch.nn.Parameter, torch.nn.Buffer} if hasattr(torch.nn, "Buffer") else {Tensor, torch.nn.Parameter}


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


_memory = _Memory()


class Tally:
    """The counts of one site on the CPU, in true units: what is seen under a scale of 2^k is filed with `shift` k."""

    __slots__ = (
        "_amax",
        "_amin",
        "_high",
        "_low",
        "_lowest",
        "_outside",
        "_rare",
        "_shift",
        "_sparse",
        "_sum",
        "_zeros",
        "dtype",
        "sampled",
        "swallowed",
    )

    def __init__(self) -> None:
        self.dtype = ""
        self.sampled = False
        self.swallowed: dict[str, int | Tensor] = {}
        # Everything that is not in the running counts: other shifts, subnormals, NaN and infinities.
        self._rare = ExponentHistogram()
        self._shift = 0
        # What the last tensor was tells how to count the next.
        self._sparse = False
        self._reset()

    def _reset(self) -> None:
        self._sum: Any = None  # int64[256], a tensor or an array
        self._zeros = 0
        self._amax = 0.0
        self._amin = self._low = inf
        self._high = -inf
        # The lowest exponent field met so far: only a tensor that reaches it is searched for the exact minimum.
        self._lowest = NONFINITE - 1
        # The upper half of the smaller of the two extremes: only a tensor that reaches it can move one of them.
        self._outside = 0

    def add(self, tensor: Tensor, shift: int = 0) -> bool:
        """Count a tensor that `countable` let through; whether it holds a NaN or an infinity."""
        if shift != self._shift:
            self._settle()
            self._shift = shift
        if not self.dtype:
            self.dtype = dtype_name(tensor.dtype)
        values = flat(tensor)
        if values.dtype is torch.float64:
            counts = exact(values)
            self._rare += counts.shifted(-shift)
            return bool(counts.nan or counts.inf)
        if values.dtype is not torch.float32 and values.dtype is not torch.bfloat16:
            values = values.float()  # exact for every narrower format
        return self._add_by_operators(values) if loop is None else self._add_in_one_pass(values.float(), loop)

    def histogram(self) -> ExponentHistogram:
        """Everything counted so far."""
        self._settle()
        return self._rare

    def _add_in_one_pass(self, values: Tensor, loop: ModuleType) -> bool:
        bits = values.view(torch.int32).numpy()
        if self._sum is None:
            self._sum = torch.zeros(FIELDS, dtype=torch.int64, device="cpu").numpy()
        tiny, nonfinite, largest, lowest, smallest_bits = loop.count(bits, self._sum)
        if nonfinite:
            self._add_nonfinite(values, nonfinite)
            values = values[values.isfinite()]
            if not values.numel():
                return True
            # Once more, for the extremes of what is finite.
            *_, largest, lowest, smallest_bits = loop.count(values.view(torch.int32).numpy(), self._sum.copy())
        least = inf if smallest_bits == loop.NOTHING else loop.number(smallest_bits + 1)
        self._amin = min(self._amin, least)
        self._reach(loop.number(lowest), loop.number(largest))
        if tiny:
            self._add_tiny(values, tiny, subnormal=least < _SMALLEST_NORMAL)
        return bool(nonfinite)

    def _add_by_operators(self, values: Tensor) -> bool:
        """Extremes are searched for only in a tensor that may move them."""
        counted, halves = fields(values, sparse=self._sparse)
        mixed = 3 if self._sparse else 0
        # Summed as a tensor, looked at as a list: both are cheaper than adding lists.
        if self._sum is None:
            self._sum = counted
        else:
            self._sum += counted
        seen = counted.tolist()
        if seen[NONFINITE]:
            self._add_nonfinite(values, seen[NONFINITE])
            values = values[values.isfinite()]
            if not values.numel():
                return True
        if seen[0]:
            zeros = int(halves[: mixed + 1].sum()) if halves is not None else 0
            self._add_tiny(values, seen[0], subnormal=zeros != seen[0] and smallest(values) < _SMALLEST_NORMAL)
            self._sparse = seen[0] > values.numel() // 4
        if self._reaches_out(seen, halves, mixed):
            self._reach(*(limit.item() for limit in torch.aminmax(values)))
            self._outside = min(_half(self._high), _half(-self._low))
        if self._reaches_down(seen, halves, mixed):
            self._amin = min(self._amin, smallest(values))
        return bool(seen[NONFINITE])

    def _settle(self) -> None:
        if self._sum is not None:
            counts = self._sum.tolist()
            exponents = {field - BIAS: counts[field] for field in range(1, NONFINITE) if counts[field]}
            running = ExponentHistogram(
                exponents, self._zeros, amax=self._amax, amin=self._amin, high=self._high, low=self._low
            )
            self._rare += running.shifted(-self._shift)
        self._reset()

    def _reaches_out(self, seen: list[int], halves: Tensor | None, mixed: int) -> bool:
        """Whether a tensor may hold an element beyond one of the extremes met so far."""
        if halves is None or not self._outside:
            return True
        field = self._outside >> 7
        if not seen[field] or any(seen[field + 1 : NONFINITE]):
            return any(seen[field + 1 : NONFINITE])
        return any(halves[self._outside & ~mixed : (field + 1) << 7].tolist())

    def _reaches_down(self, seen: list[int], halves: Tensor | None, mixed: int) -> bool:
        """Whether a tensor may hold a smaller magnitude than all before: only then is the exact one searched for."""
        field = self._lowest
        if any(seen[1:field]):
            self._lowest = next(lower for lower in range(1, field) if seen[lower])
            return True
        if halves is None or not seen[field]:
            return bool(seen[field])
        return any(halves[field << 7 : (_half(self._amin) | mixed) + 1].tolist())

    def _reach(self, low: float, high: float) -> None:
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._amax = max(self._amax, high, -low)

    def _add_nonfinite(self, values: Tensor, total: int) -> None:
        nan = int(values.isnan().sum())
        positive = int((values == inf).sum())
        self._rare += ExponentHistogram(nan=nan, positive_inf=positive, negative_inf=total - nan - positive)

    def _add_tiny(self, values: Tensor, total: int, *, subnormal: bool) -> None:
        """An exponent field of 0 is a zero or a float32 subnormal."""
        if subnormal:
            tiny = values[values.abs() < _SMALLEST_NORMAL]
            self._rare += exact(tiny.double()).shifted(-self._shift)
        else:
            self._zeros += total


def _half(value: float) -> int:
    """Exponent and seven bits of the significand of a float32; 0 for what is not positive."""
    return int.from_bytes(struct.pack(">f", value)[:2]) if value > 0 else 0


def exact(values: Tensor) -> ExponentHistogram:
    """The histogram of a one-dimensional tensor by `frexp`: any format, slowly."""
    finite = values[values.isfinite()]
    magnitudes = finite.abs()
    magnitudes = magnitudes[magnitudes > 0]
    nan = int(values.isnan().sum())
    positive = int((values == inf).sum())
    exponents, counts = torch.unique(torch.frexp(magnitudes).exponent - 1, return_counts=True)
    return ExponentHistogram(
        dict(zip(exponents.tolist(), counts.tolist(), strict=True)),
        zeros=finite.numel() - magnitudes.numel(),
        nan=nan,
        positive_inf=positive,
        negative_inf=values.numel() - finite.numel() - nan - positive,
        amax=float(magnitudes.max()) if magnitudes.numel() else 0.0,
        amin=float(magnitudes.min()) if magnitudes.numel() else inf,
        high=float(finite.max()) if finite.numel() else -inf,
        low=float(finite.min()) if finite.numel() else inf,
    )
