"""Names of dtypes; arguments and results in another dtype, inside tuples, lists and dicts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

LOW = (torch.float16, torch.bfloat16)
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_FLOAT32_MAX = torch.finfo(torch.float32).max


def dtype_name(dtype: torch.dtype) -> str:
    """As profiles have it: float32."""
    return str(dtype).removeprefix("torch.")


def widened(value: Any, *, dtypes: bool = True) -> Any:
    """Arguments in FP32: tensors, and with `dtypes` the dtypes asked for."""
    if isinstance(value, Tensor):
        return value.to(_WIDE[value.dtype]) if value.dtype in _WIDE else value
    if isinstance(value, torch.dtype):
        return torch.float32 if dtypes and value in LOW else value
    if isinstance(value, (tuple, list)):
        return type(value)(widened(one, dtypes=dtypes) for one in value)
    if isinstance(value, dict):
        return {key: widened(one, dtypes=dtypes) for key, one in value.items()}
    return value


def in_dtype(value: Any, dtype: torch.dtype | None) -> Any:
    """FP32 and half tensors in `dtype`; as they are when it is None."""
    if isinstance(value, Tensor):
        return value.to(dtype) if dtype is not None and value.dtype in (torch.float32, *LOW) else value
    if isinstance(value, (tuple, list)):
        return tuple(in_dtype(one, dtype) for one in value)
    return value


def narrowed(value: Any, dtype: torch.dtype) -> Any:
    """FP32 tensors in `dtype`."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is torch.float32 else value
    if isinstance(value, (tuple, list)):
        return type(value)(narrowed(one, dtype) for one in value)
    if isinstance(value, dict):
        return {key: narrowed(one, dtype) for key, one in value.items()}
    return value


def cut(value: Any) -> Any:
    """The same values without FP32's history, which its own backward pass uses up."""
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return tuple(cut(one) for one in value)
    return value


def is_low(value: Any) -> bool:
    """Whether a half tensor is among the values."""
    if isinstance(value, Tensor):
        return value.dtype in LOW
    return isinstance(value, (tuple, list)) and any(map(is_low, value))


def within_range(value: Any, dtype: torch.dtype) -> Any:
    """Arguments with the extremes of FP32, as `torch.finfo(x.dtype).min` gives them, replaced by those of `dtype`."""
    if isinstance(value, float) and abs(value) == _FLOAT32_MAX:
        return math.copysign(torch.finfo(dtype).max, value)
    if isinstance(value, (tuple, list)):
        return type(value)(within_range(one, dtype) for one in value)
    if isinstance(value, dict):
        return {key: within_range(one, dtype) for key, one in value.items()}
    return value
