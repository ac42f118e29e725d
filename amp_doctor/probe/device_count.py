"""Counting on a GPU: into fixed-length buffers on the device, which are read once per step.

`bincount` reads the maximum of its input back to the host and so stalls the queue on every call; here nothing is read
back for a tensor. Sign, exponent and the first bit of the significand give 1024 bins, which tell NaN from the two
infinities; each bin has several counters side by side, so that elements of one exponent, as most are, do not queue
for one address. Two things are coarser than on the CPU: a float32 subnormal counts as zero, and `amin` is the lower
edge of the lowest half-bin (a factor of 1.5 at most).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.float_bits import BIAS, NONFINITE, flat, upper_halves

if TYPE_CHECKING:
    from collections.abc import Iterator

BINS = 1024
LANES = 8
# Elements per launch: the indices of more would take too much memory.
_CHUNK = 1 << 22
_ROWS = 64
# Bins are sign, exponent field, first bit of the significand: an infinity has none, a quiet NaN has it.
_POSITIVE_INF, _NAN, _NEGATIVE_INF, _NEGATIVE_NAN = 510, 511, 1022, 1023


def on_host(device: torch.device) -> bool:
    """Whether reading a value makes nobody wait."""
    return device.type == "cpu"


class DevicePool:
    """The buffers of all sites on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counts: list[Tensor] = []
        self._limits: list[Tensor] = []
        self._tallies: list[DeviceTally] = []
        self._touched: dict[DeviceTally, None] = {}
        self._lanes = torch.arange(LANES, dtype=torch.int32, device=device)
        self._one = torch.ones(1, dtype=torch.int32, device=device)

    def tally(self) -> DeviceTally:
        """The buffers of a new site."""
        row = len(self._tallies) % _ROWS
        if row == 0:
            self._counts.append(torch.zeros(_ROWS, BINS * LANES, dtype=torch.int32, device=self._device))
            self._limits.append(torch.tensor([[inf, -inf]], device=self._device).repeat(_ROWS, 1))
        tally = DeviceTally(self, self._counts[-1][row], self._limits[-1][row])
        self._tallies.append(tally)
        return tally

    def add(self, tally: DeviceTally, values: Tensor) -> None:
        """Count a one-dimensional float32 or bfloat16 tensor; nothing waits for the result."""
        self._touched.setdefault(tally)
        bits = upper_halves(values)
        for chunk in bits.split(_CHUNK):
            bins = (chunk >> 6).bitwise_and_(BINS - 1).to(torch.int32).mul_(LANES)
            whole = chunk.numel() // LANES * LANES
            bins[:whole].view(-1, LANES).add_(self._lanes)
            tally.counts.index_add_(0, bins, self._one.expand(bins.numel()))
        low, high = torch.aminmax(values)
        # fmin and fmax pass over NaN.
        torch.fmin(tally.limits[0], low.float(), out=tally.limits[0])
        torch.fmax(tally.limits[1], high.float(), out=tally.limits[1])

    def read(self) -> Iterator[tuple[DeviceTally, int, int, int]]:
        """Move the step's counts to the host; the tallies that met NaN, +inf or -inf, in the order of their first."""
        touched, self._touched = list(self._touched), {}
        counts = [table.view(_ROWS, BINS, LANES).sum(-1).cpu() for table in self._counts]
        # On the CPU `cpu()` would be the buffer itself, which is cleared below.
        limits = [table.to("cpu", copy=True) for table in self._limits]
        for table, pairs in zip(self._counts, self._limits, strict=True):
            table.zero_()
            pairs[:, 0], pairs[:, 1] = inf, -inf
        places = {tally: divmod(number, _ROWS) for number, tally in enumerate(self._tallies)}
        for tally in touched:
            number, row = places[tally]
            bad = tally.take(counts[number][row], limits[number][row].tolist())
            if any(bad):
                yield (tally, *bad)


class DeviceTally:
    """The counts of one site on a device; `take` files what was read, in true units."""

    __slots__ = ("_pool", "_shift", "_sum", "counts", "dtype", "limits", "sampled", "swallowed")

    def __init__(self, pool: DevicePool, counts: Tensor, limits: Tensor) -> None:
        self.dtype = ""
        self.sampled = False
        self.swallowed: dict[str, int | Tensor] = {}
        self.counts = counts
        self.limits = limits
        self._pool = pool
        self._shift = 0
        self._sum = ExponentHistogram()

    def add(self, tensor: Tensor, shift: int = 0) -> bool:
        """Count a tensor; whether it holds a NaN or an infinity is known when the step is read."""
        if shift != self._shift:
            for _ in self._pool.read():
                pass  # rare: two scales within a step; what was met is in the counts all the same
            self._shift = shift
        if not self.dtype:
            self.dtype = dtype_name(tensor.dtype)
        values = flat(tensor)
        if values.dtype is not torch.float32 and values.dtype is not torch.bfloat16:
            values = values.float()
        self._pool.add(self, values)
        return False

    def take(self, counts: Tensor, limits: list[float]) -> tuple[int, int, int]:
        """File a step's counts; how many were NaN, +inf and -inf."""
        bins: list[int] = counts.tolist()
        exponents: dict[int, int] = {}
        zeros = 0
        least = inf
        for number in range(BINS):
            if not bins[number]:
                continue
            field = number >> 1 & NONFINITE
            if field == 0:
                zeros += bins[number]
            elif field != NONFINITE:
                exponents[field - BIAS] = exponents.get(field - BIAS, 0) + bins[number]
                least = min(least, 2.0 ** (field - BIAS) * (1.5 if number & 1 else 1.0))
        nan = bins[_NAN] + bins[_NEGATIVE_NAN]
        positive, negative = bins[_POSITIVE_INF], bins[_NEGATIVE_INF]
        low, high = limits
        if exponents and (nan or positive or negative):
            # The extremes are lost behind the infinities: the upper edge of the top bin bounds them.
            top = 2.0 ** (max(exponents) + 1)
            low, high = (-top if low == -inf else low), (top if high == inf else high)
        found = ExponentHistogram(
            exponents,
            zeros,
            nan,
            positive,
            negative,
            max(high, -low) if exponents else 0.0,
            least,
            high if exponents or zeros else -inf,
            low if exponents or zeros else inf,
        )
        self._sum += found.shifted(-self._shift)
        return nan, positive, negative

    def histogram(self) -> ExponentHistogram:
        """Everything read so far."""
        return self._sum
