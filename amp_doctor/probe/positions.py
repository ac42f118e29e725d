"""Whole numbers one after the other, as positions are, in a format that cannot tell neighbours apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from amp_doctor.probe.dtypes import LOW

if TYPE_CHECKING:
    from torch import Tensor

# The first whole number whose successor a format does not have.
_LAST = {torch.float16: 2048, torch.bfloat16: 256}
# So many of the steps from one to the next must be none of zero: counts and labels are no positions.
_STEPS = 0.5


def collapsed(wide: Tensor, low: Tensor, amax: float) -> float:
    """The share of neighbours that are different whole numbers in `wide`, growing or falling, and the same in `low`.

    Looked at is the first line along each dimension; `amax` is the largest magnitude in `wide`.
    """
    if low.dtype not in LOW or amax <= _LAST[low.dtype] or wide.shape != low.shape:
        return 0.0
    with torch.no_grad():
        return max((_along(wide.detach(), low.detach(), dim) for dim in range(wide.dim())), default=0.0)


def _along(wide: Tensor, low: Tensor, dim: int) -> float:
    first = tuple(slice(None) if one == dim else 0 for one in range(wide.dim()))
    line, held = wide[first].double(), low[first].double()
    if line.numel() < 2 or not line.isfinite().all() or not torch.equal(line, line.round()):
        return 0.0
    steps = line.diff()
    moving = int((steps != 0).sum())
    if moving < _STEPS * steps.numel() or ((steps > 0).any() and (steps < 0).any()):
        return 0.0
    return int(((steps != 0) & (held.diff() == 0)).sum()) / max(1, moving)
