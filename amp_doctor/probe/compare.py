"""One result in two precisions: what the reduced one lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Elements looked at beyond the first so many: an odd stride through the rest.
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Compared:
    """`amax` is the largest finite magnitude in FP32; `lost` and `overflowed` are shares of the non-zero elements.

    `error` is the norm of the difference over that of the FP32 result, where both are finite; `broken` counts the
    elements that are finite in FP32 only.
    """

    amax: float = 0.0
    overflowed: float = 0.0
    lost: float = 0.0
    error: float = 0.0
    broken: int = 0


def compare(wide: Tensor, low: Tensor) -> Compared:
    """`wide` as FP32 has it, `low` as the reduced precision has it; same shape."""
    if wide.shape != low.shape or not wide.numel():
        return Compared()
    with torch.no_grad():
        a, b = _sample(wide.detach()).double(), _sample(low.detach()).double()
        finite = a.isfinite()
        a, b = a[finite], b[finite]
        if not a.numel():
            return Compared()
        good = b.isfinite()
        filled = a != 0
        counted = max(1, int(filled.sum()))
        size = float(a.abs().max())
        broken = int((~good).sum())
        lost = int(((b == 0) & filled).sum()) / counted
        a, b = a[good], b[good]
        norm = float(a.norm())
        error = float((a - b).norm()) / norm if norm else float((b != 0).any())
    return Compared(size, broken / counted, lost, error, broken)


def _sample(values: Tensor) -> Tensor:
    flat = values.reshape(-1)
    return flat if flat.numel() <= _MOST else flat[:: 2 * (flat.numel() // (2 * _MOST)) + 1]
