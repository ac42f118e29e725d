"""One result in two precisions: what the reduced one lost."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Elements that are compared; of larger tensors an odd stride through them. What is infinite is always counted.
_MOST = 1 << 17


@dataclass(frozen=True, slots=True)
class Compared:
    """`amax` is the largest finite magnitude in FP32; `lost` is a share of the non-zero elements, `overflowed` of all.

    `error` is the norm of the difference over that of the FP32 result, where both are finite; `broken` counts the
    elements that are finite in FP32 only, `nan` those of them that are no number.
    """

    amax: float = 0.0
    overflowed: float = 0.0
    lost: float = 0.0
    error: float = 0.0
    broken: int = 0
    nan: int = 0


def compare(wide: Tensor, low: Tensor) -> Compared:
    """`wide` as FP32 has it, `low` as the reduced precision has it; same shape."""
    if wide.shape != low.shape or not wide.numel():
        return Compared()
    with torch.no_grad():
        # The gradient of a sparse embedding is sparse.
        wide, low = (one.to_dense() if one.layout is not torch.strided else one.detach() for one in (wide, low))
        limits = torch.aminmax(wide)
        size = max(-float(limits.min), float(limits.max))
        sound = isfinite(size) and isfinite(float(low.sum(dtype=torch.float64)))
        broken = nan = 0
        if not sound:
            finite = wide.isfinite()
            broken, nan = int((finite & ~low.isfinite()).sum()), int((finite & low.isnan()).sum())
            size = float(wide[finite].abs().max()) if finite.any() else 0.0
        a, b = _sample(wide).double(), _sample(low).double()
        if not sound:
            a, b = a[a.isfinite()], b[a.isfinite()]
        if not a.numel():
            return Compared(size, broken=broken, nan=nan)
        filled = a != 0
        counted = max(1, int(filled.sum()))
        lost = int(((b == 0) & filled).sum()) / counted
        if broken:
            good = b.isfinite()
            a, b = a[good], b[good]
        norm = float(a.norm())
        error = float((a - b).norm()) / norm if norm else float((b != 0).any())
    return Compared(size, broken / wide.numel(), lost, error, broken, nan)


def _sample(values: Tensor) -> Tensor:
    flat = values.reshape(-1)
    return flat if flat.numel() <= _MOST else flat[:: 2 * (flat.numel() // (2 * _MOST)) + 1]
