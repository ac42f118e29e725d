"""Sums in half: over many elements they overflow, and once they are large they no longer notice what is added.

Kernels of a single sum add up in FP32 and round once (CUDA and CPU alike); sums that are kept, one step or one element
after the other, are rounded each time, and so are those that `index_add` and `scatter_add` make by atomic additions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

ADDS = frozenset("add add_ __add__ __radd__ __iadd__".split())
_SCANS = frozenset(("cumsum", "cumsum_"))
# Their arguments are a tensor, a dimension, an index and the terms. On a GPU each addition is rounded by itself.
_SCATTERS = frozenset("index_add index_add_ scatter_add scatter_add_".split())
# Operators whose result is a sum over elements of an argument, or the root of one.
REDUCES = frozenset(
    "sum nansum cumsum cumsum_ norm vector_norm matrix_norm dot vdot trace index_add index_add_ scatter_add "
    "scatter_add_ scatter_reduce scatter_reduce_ logcumsumexp segment_reduce".split()
)
# Counts and rates that a script keeps in half are sums over so many elements at least.
MANY = 1 << 12
# A sum that has overflowed is so many times larger than what it sums.
_GROWN = 8.0


def grows(name: str, result: float, largest: float) -> bool:
    """Whether a reduction has brought its result far above `largest`, the largest magnitude among its arguments."""
    return name in REDUCES and result >= _GROWN * largest


def terms_of(name: str, args: Any) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """For a sum in half: from its result, the terms and which of them have changed nothing. Ask before the call."""
    if len(args) < 2:
        return None
    if name in ADDS and isinstance(args[1], Tensor):
        before, added = args[0].detach().clone(), args[1].detach()
        return lambda after: (added.expand_as(after), before == after)
    if name in _SCANS and isinstance(args[1], int) and args[0].dim():
        terms, dim = args[0].detach().clone(), args[1]
        return lambda after: (terms, torch.diff(after, dim=dim, prepend=torch.zeros_like(after.narrow(dim, 0, 1))) == 0)
    if name in _SCATTERS and len(args) > 3:
        _, dim, index, added = args[:4]
        return lambda after: (added.detach(), _too_small(added.detach(), _sums(name, after, dim, index)))
    return None


def _sums(name: str, after: Tensor, dim: int, index: Tensor) -> Tensor:
    """The sum that each term has gone into."""
    return after.index_select(dim, index) if name.startswith("index") else after.gather(dim, index)


def _too_small(terms: Tensor, sums: Tensor) -> Tensor:
    """Terms that vanish once half of the sum is there: below half of the distance to the next number."""
    return terms.abs().double() < sums.abs().double() * torch.finfo(sums.dtype).eps / 4


def swallowed(terms: Callable[[Tensor], tuple[Tensor, Tensor]], result: Tensor) -> float:
    """The share, in magnitude, of the terms that a sum in half does not notice."""
    with torch.no_grad():
        try:
            added, unmoved = terms(result.detach())
        except RuntimeError:  # broadcast the other way
            return 0.0
        sizes = added.abs().double()
        total = float(sizes.sum())
        return float(sizes[unmoved].sum()) / total if total else 0.0
