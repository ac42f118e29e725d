"""Half kernels of the CPU that round on the way, where those of CUDA round once (measured on torch 2.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.probe.dtypes import LOW

if TYPE_CHECKING:
    from collections.abc import Callable


class _LogSoftmax(torch.autograd.Function):
    """Float32 inside; what backward uses is the rounded result, as on CUDA."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> Tensor:
        return torch.log_softmax(x.float(), dim).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        wide = grads[0].float()
        return (wide - output.float().exp() * wide.sum(ctx.dim, keepdim=True)).to(output.dtype), None


def _log_softmax(op: Any) -> Callable[..., Any]:
    """Cross entropy asks for it in the dtype of its input, and autocast leaves a dtype that is asked for."""

    def call(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if x.dtype in LOW and dtype in (None, x.dtype):
            return _LogSoftmax.apply(x, dim)  # type: ignore[no-untyped-call]
        return op(x, dim, dtype)

    return call


def _batch_norm(op: Any) -> Callable[..., Any]:
    """Statistics are float32 on CUDA; on the CPU only where the weights are."""

    def call(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
        if x.dtype not in LOW or any(one is not None and one.dtype is torch.float32 for one in (weight, mean)):
            return op(x, weight, bias, mean, var, *rest)
        wide = [None if one is None else one.float() for one in (weight, bias, mean, var)]
        result = op(x.float(), *wide, *rest).to(x.dtype)
        with torch.no_grad():
            for kept, new in ((mean, wide[2]), (var, wide[3])):
                if kept is not None:
                    kept.copy_(new)
        return result

    return call


FUSED: dict[str, Callable[[Any], Callable[..., Any]]] = {"log_softmax.int": _log_softmax, "batch_norm": _batch_norm}
