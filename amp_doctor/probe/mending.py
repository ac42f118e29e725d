"""Infinities that arise in reduced precision only, and what a replay goes on with in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from torch import Tensor

MASKS = frozenset(("where", "masked_fill", "masked_fill_"))
_LARGE = 60000
# What is hidden lies so many times further from zero than all that is not.
_FAR = 100.0


def mended(wide: Tensor, low: Tensor, *, masks: bool, product: bool, constant: bool) -> tuple[Tensor, bool]:
    """`low` with FP32's numbers, within the range, where it alone is not finite; and whether it is a mask all the same.

    The infinities of a mask stay, since what it hides is meant to vanish: those of an operator that masks, or reads a
    mask (`masks`), or, but of a matrix `product`, numbers far below all others, as where a mask is added to the logits,
    or far from them on either side, where a `constant` of the call is beyond the range itself.
    """
    wide = wide.detach()
    finite = low.isfinite()
    broken = wide.isfinite() & ~finite
    hidden = broken & low.isinf() & (wide.abs() >= FP16.overflow_threshold) & (low.sign() == wide.sign())
    far = not product and torch.equal(hidden, broken) and _far(wide[hidden], low.detach()[finite], either=constant)
    stays = bool(hidden.any()) and (masks or far)
    if stays:
        finite = finite | hidden | ~wide.isfinite()
    return torch.where(finite, low, wide.clamp(-_LARGE, _LARGE).to(low.dtype)), stays


def _far(hidden: Tensor, shown: Tensor, *, either: bool) -> bool:
    """Whether numbers are meant to hide: on one side, and all others are far nearer to zero."""
    if not shown.numel() or ((hidden > 0).any() and not (either and (hidden > 0).all())):
        return False
    return float(hidden.abs().min()) >= _FAR * float(shown.abs().max())
