"""Tensor -> exponent counts and extremes.

Counting is what a probe costs. With Numba one compiled loop does it (loop.py: 0.3 nanoseconds per element, measured).
Without, operators of torch do (float_bits.py: half a nanosecond, and ten microseconds per tensor).
"""

from __future__ import annotations

import importlib
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.float_bits import BIAS, FIELDS, NONFINITE, fields, flat, smallest, upper_half

if TYPE_CHECKING:
    from types import ModuleType

loop: ModuleType | None
try:
    loop = importlib.import_module("amp_doctor.probe.loop")
except ImportError:  # Numba is not installed, or does not know this version of numpy or Python
    loop = None

_SMALLEST_NORMAL = 2.0**-126
# torch.nn.Buffer came with torch 2.5.
_PLAIN = {Tensor, torch.nn.Parameter, torch.nn.Buffer} if hasattr(torch.nn, "Buffer") else {Tensor, torch.nn.Parameter}


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
            self._outside = min(upper_half(self._high), upper_half(-self._low))
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
        return any(halves[field << 7 : (upper_half(self._amin) | mixed) + 1].tolist())

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
