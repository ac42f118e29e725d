"""Floating-point operations of one call, by torch's own formulas (torch.utils.flop_counter)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_RECURRENT = {"lstm": 1, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
_ATTENTION = flop_registry.get(torch.ops.aten._scaled_dot_product_flash_attention)


class Flops(TorchDispatchMode):
    """Adds up what runs inside; enter it anew for each call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiled runs inside: torch._dynamo, which takes seconds to import, need not be told."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        formula = flop_registry.get(packet)
        if formula is None and "_scaled_dot_product_" in packet.__name__ and "backward" not in packet.__name__:
            formula, kwargs = _ATTENTION, {}
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


def recurrent(name: str, args: Any) -> int:
    """Those of a fused recurrent layer, which torch has no formula for: each weight once per element of a sequence."""
    if name not in _RECURRENT or not args or not isinstance(args[0], Tensor):
        return 0
    weights = next((one for one in args if isinstance(one, (list, tuple)) and len(one) >= 4), ())
    matrices = sum(one.numel() for one in weights if isinstance(one, Tensor) and one.dim() == 2)
    return 2 * matrices * (args[0].numel() // max(1, args[0].shape[-1]))
