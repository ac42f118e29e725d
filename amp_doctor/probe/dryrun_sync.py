"""SyncBatchNorm between ranks on CPUs: torch's own Function, over kernels that it has for GPUs alone.

Statistics and sums are float32 and results have the dtype of the input, as on CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.modules import batchnorm
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.patches import Patches

Maybe = Tensor | None


def synchronise(patches: Patches) -> None:
    """Let SyncBatchNorm train on the CPU."""
    for kernel in (stats, gathered, normalised, reduced, input_gradient):
        patches.replace(torch, _NAMES[kernel.__name__], kernel)
    patches.wrap(nn.SyncBatchNorm, "forward", _forward)
    # Of DDP: all that it does is to refuse a module on the CPU.
    patches.replace(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each channel, of this rank."""
    wide, over = x.float(), _all_but_channels(x)
    return wide.mean(over), (wide.var(over, unbiased=False) + eps).rsqrt()


def gathered(
    _x: Tensor, mean: Tensor, invstd: Tensor, kept_mean: Maybe, kept_var: Maybe, momentum: float, eps: float, n: Tensor
) -> tuple[Tensor, Tensor]:
    """The same of all ranks, which saw `n` values per channel each; the running statistics follow."""
    share = (n / n.sum()).float()[:, None]
    whole = (share * mean).sum(0)
    var = (share * (invstd.pow(-2) - eps + (mean - whole) ** 2)).sum(0)
    for kept, new in ((kept_mean, whole), (kept_var, var * n.sum() / (n.sum() - 1))):
        if kept is not None:
            kept.lerp_(new.to(kept.dtype), momentum)
    return whole, (var + eps).rsqrt()


def normalised(x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, invstd: Tensor, _eps: float) -> Tensor:
    """The result of the layer."""
    out = (x.float() - _beside(mean, x)) * _beside(invstd, x)
    out = out if weight is None else out * _beside(weight.float(), x)
    out = out if bias is None else out + _beside(bias.float(), x)
    return out.to(x.dtype)


def reduced(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Maybe, *_needed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sums of this rank over `grad` and over `grad * (x - mean)`, and the gradients of weight and bias."""
    wide, over = grad.float(), _all_but_channels(x)
    total, weighed = wide.sum(over), (wide * (x.float() - _beside(mean, x))).sum(over)
    dtype = weight.dtype if weight is not None else total.dtype
    return total, weighed, (weighed * invstd).to(dtype), total.to(dtype)


def input_gradient(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Maybe, total: Tensor, weighed: Tensor, n: Tensor
) -> Tensor:
    """The gradient of the input, from the sums of all ranks."""
    number = n.sum()
    slope = invstd if weight is None else invstd * weight.float()
    centred = (x.float() - _beside(mean, x)) * _beside(invstd**2 * weighed / number, x)
    return ((grad.float() - _beside(total / number, x) - centred) * _beside(slope, x)).to(x.dtype)


_NAMES = {
    "stats": "batch_norm_stats",
    "gathered": "batch_norm_gather_stats_with_counts",
    "normalised": "batch_norm_elemt",
    "reduced": "batch_norm_backward_reduce",
    "input_gradient": "batch_norm_backward_elemt",
}


def _forward(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As torch's, which refuses the CPU before it looks at how many ranks there are."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not (self.training and torch.distributed.is_available() and torch.distributed.is_initialized()):
            return original(self, x)
        group = self.process_group or torch.distributed.group.WORLD
        ranks = torch.distributed.get_world_size(group)
        if ranks == 1:
            return nn.modules.batchnorm._BatchNorm.forward(self, x)
        self._check_input_dim(x)
        self._check_non_zero_input_channels(x)
        share, kept = self.momentum or 0.0, (None, None)
        if self.track_running_stats:
            self.num_batches_tracked.add_(1)
            kept = self.running_mean, self.running_var
            share = 1.0 / self.num_batches_tracked.item() if self.momentum is None else share
        out: Tensor = batchnorm.sync_batch_norm.apply(  # type: ignore[attr-defined]
            x, self.weight, self.bias, *kept, self.eps, share, group, ranks
        )
        return out

    return forward


def _all_but_channels(x: Tensor) -> list[int]:
    return [one for one in range(x.dim()) if one != 1]


def _beside(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (x.dim() - 2))
