"""Infinities that arise in reduced precision only, and what a replay goes on with in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from torch import Tensor

MASKS = frozenset(("where", "masked_fill", "masked_fill_"))
_LARGE = 60000


def mended(wide: Tensor, low: Tensor, *, masks: bool) -> tuple[Tensor, bool]:
    """`low` with FP32's numbers, within the range, where it alone is not finite; and whether it is a mask all the same.

    The -inf of a mask stays, since what it hides is meant to vanish: that of an operator that masks, or reads a mask
    (`masks`), or of a tensor that is zero wherever it is finite, as one to be added to the logits.
    """
    wide = wide.detach()
    finite = low.isfinite()
    hidden = (low == -torch.inf) & (wide <= -FP16.overflow_threshold)
    stays = bool(hidden.any()) and (masks or (bool(finite.any()) and not low.detach()[finite].any()))
    if stays:
        finite = finite | hidden
    return torch.where(finite, low, wide.clamp(-_LARGE, _LARGE).to(low.dtype)), stays
