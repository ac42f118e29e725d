"""Which calls may draw random numbers: comparing the state of the generator around all of them costs too much."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch

_KNOWN: dict[Any, bool] = {}
# In names of the functions of torch.nn.functional that draw.
_DRAWING = ("drop", "rrelu", "gumbel", "fractional", "attention")
_BUILTIN = (BuiltinFunctionType, MethodDescriptorType)


def may_draw(function: Any) -> bool:
    """False where torch says that a function is deterministic; True for what is unknown."""
    known = _KNOWN.get(function)
    if known is None:
        known = _KNOWN[function] = _looked_up(function)
    return known


def _looked_up(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if isinstance(function, FunctionType) and function.__module__ == "torch.nn.functional":
        return any(word in name for word in _DRAWING)
    if not isinstance(function, _BUILTIN):
        return True
    operator = getattr(torch.ops.aten, name.strip("_") if name.startswith("__") else name, None)
    if operator is None:
        return True
    return any(torch.Tag.nondeterministic_seeded in getattr(operator, one).tags for one in operator.overloads())
