"""The bits of a tensor in one number, so that a replay can be compared without keeping the values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(values: Tensor) -> int | None:
    """The sum of the elements' bits as integers; None for what has no plain memory on the host.

    Equal bits give equal numbers; a single changed bit changes it.
    """
    if values.layout is not torch.strided or values.device.type != "cpu" or values.is_quantized:
        return None
    plain = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    bits = plain.detach()
    if bits.is_neg():
        bits = bits.resolve_neg()
    return int(bits.view(_INTEGERS[bits.element_size()]).sum(dtype=torch.int64).item())
