"""Names of dtypes; arguments and results in another dtype."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from amp_doctor.probe.nested import mapped, tensors

LOW = (torch.float16, torch.bfloat16)
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_FLOAT32_MAX = torch.finfo(torch.float32).max


def dtype_name(dtype: torch.dtype) -> str:
    """As profiles have it: float32."""
    return str(dtype).removeprefix("torch.")


def widened(value: Any, *, dtypes: bool = True) -> Any:
    """Arguments in FP32: tensors, and with `dtypes` the dtypes asked for."""

    def wide(one: Any) -> Any:
        if isinstance(one, Tensor):
            return one.to(_WIDE[one.dtype]) if one.dtype in _WIDE else one
        return torch.float32 if dtypes and isinstance(one, torch.dtype) and one in LOW else one

    return mapped(value, wide)


def in_dtype(value: Any, dtype: torch.dtype | None) -> Any:
    """FP32 and half tensors in `dtype`; as they are when it is None."""
    return value if dtype is None else _cast(value, dtype, (torch.float32, *LOW))


def narrowed(value: Any, dtype: torch.dtype) -> Any:
    """FP32 tensors in `dtype`."""
    return _cast(value, dtype, (torch.float32,))


def _cast(value: Any, dtype: torch.dtype, from_: tuple[torch.dtype, ...]) -> Any:
    return mapped(value, lambda one: one.to(dtype) if isinstance(one, Tensor) and one.dtype in from_ else one)


def cut(value: Any) -> Any:
    """The same values without FP32's history, which its own backward pass uses up."""
    return mapped(value, lambda one: one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one)


def is_low(value: Any) -> bool:
    """Whether a half tensor is among the values."""
    return any(one.dtype in LOW for one in tensors((value,)))


def within_range(value: Any, dtype: torch.dtype) -> Any:
    """Arguments with the extremes of FP32, as `torch.finfo(x.dtype).min` gives them, replaced by those of `dtype`."""

    def fitting(one: Any) -> Any:
        extreme = isinstance(one, float) and abs(one) == _FLOAT32_MAX
        return math.copysign(torch.finfo(dtype).max, one) if extreme else one

    return mapped(value, fitting)
