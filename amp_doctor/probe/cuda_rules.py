"""What autocast on CUDA makes of an operator: the policy of the installed torch, and the dtype that comes out.

Source: ATen/autocast_mode.h of the installed wheel, which the dispatcher and torch's own test lists confirm in a test.
"""

from __future__ import annotations

from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from amp_doctor.probe.autocast_header import policies_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LOWER_PRECISION = "lower_precision"
FP32 = "fp32"
SET_DTYPE = "fp32_set_opt_dtype"
APPEND_DTYPE = "fp32_append_dtype"
PROMOTE = "promote"
BANNED = "banned"

# Written in C++ for cuDNN, in ATen/cudnn/AutocastRNN.cpp, which is compiled with CUDA only: everything is made half.
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_COMPARISONS = frozenset("eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_not".split())


class Banned(Exception):
    """Autocast on CUDA refuses the operator."""


@cache
def policy() -> Mapping[str, str]:
    """Operator of the installed torch -> policy. OSError or ValueError when its header is missing or unknown."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    return policies_of(header.read_text(encoding="utf-8"))


def policy_of(op: str, rules: Mapping[str, str] | None = None) -> str | None:
    """The policy of `op`, with or without `aten::` and overload; None when autocast leaves it alone."""
    rules = policy() if rules is None else rules
    name = op.removeprefix("aten::").removesuffix(".default")
    if name in rules:
        return rules[name]
    if name.partition(".")[0] in RECURRENT:
        return LOWER_PRECISION
    if "." in name:
        return None
    # Without an overload: all listed overloads of a name stand on one list, `norm` and `pow` too.
    return next((found for other, found in rules.items() if other.partition(".")[0] == name), None)


def eligible(dtype: torch.dtype) -> bool:
    """Whether autocast may cast a tensor of this dtype: integers and float64 are left alone."""
    return dtype.is_floating_point and dtype is not torch.float64


def computed_dtype(
    op: str,
    inputs: Sequence[torch.dtype],
    autocast: torch.dtype | None,
    dtype: torch.dtype | None = None,
    rules: Mapping[str, str] | None = None,
) -> torch.dtype:
    """The dtype in which floating-point inputs enter the operator under autocast (None: outside of it).

    `dtype` is what the call itself asks for. Banned is raised for what CUDA refuses.
    """
    known = policy_of(op, rules) if autocast is not None else None
    if known == BANNED:
        raise Banned(op)
    floats = [one for one in inputs if one.is_floating_point]
    casts = [one for one in floats if eligible(one)]
    if known is None or autocast is None or not casts:
        return dtype or _widest(inputs)
    if known == LOWER_PRECISION:
        return _widest([autocast, *(one for one in floats if not eligible(one))])
    if known == PROMOTE:
        return _widest([autocast, *floats])
    if known == FP32:
        return _widest([torch.float32, *floats])
    # The two that set a dtype argument look at the first input only, and leave an explicit dtype as it is.
    return dtype or (torch.float32 if inputs[:1] and eligible(inputs[0]) else _widest(inputs[:1]))


def output_dtype(
    op: str,
    inputs: Sequence[torch.dtype],
    autocast: torch.dtype | None,
    dtype: torch.dtype | None = None,
    rules: Mapping[str, str] | None = None,
) -> torch.dtype:
    """The dtype of what the operator returns: that in which it computes, but for comparisons."""
    computed = computed_dtype(op, inputs, autocast, dtype, rules)
    return torch.bool if op.removeprefix("aten::").partition(".")[0].strip("_") in _COMPARISONS else computed


def _widest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    found = list(dtypes)
    return reduce(torch.promote_types, found) if found else torch.get_default_dtype()
