"""Several processes or GPUs under a dry run: NCCL is Gloo, DDP is not told a device, DataParallel has but one."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.patches import Patches

# What names a GPU, and what Gloo or a module on the CPU refuses.
_DEVICES = ("device_id", "device_ids", "output_device")
# Takes a second to import, which scripts without it are spared.
SHARDING = "torch.distributed.fsdp.fully_sharded_data_parallel"


def regroup(patches: Patches) -> None:
    """Let process groups begin without a GPU, where torch has them."""
    patches.wrap(nn.DataParallel, "__init__", _alone)
    if not torch.distributed.is_available():
        return
    inside = torch.distributed.distributed_c10d
    for name in ("init_process_group", "new_group", "barrier"):
        wrapped = _by_gloo(getattr(inside, name))
        for owner in (inside, torch.distributed):
            patches.replace(owner, name, wrapped)
    patches.replace(torch.distributed, "is_nccl_available", lambda: True)
    patches.wrap(DistributedDataParallel, "__init__", _on_the_host)


def shard(patches: Patches) -> None:
    """Let FSDP keep a module where it is; called once FSDP is there."""
    fsdp = sys.modules[SHARDING]
    patches.wrap(fsdp.FullyShardedDataParallel, "__init__", _where_it_is)


def _where_it_is(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **kwargs | {"device_id": torch.device("cpu")})

    return init


def _by_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = {name: value for name, value in kwargs.items() if name not in _DEVICES}
        if "nccl" in str(kwargs.get("backend")).lower():
            kwargs["backend"] = "gloo"
        return original(*("gloo" if isinstance(one, str) and "nccl" in one else one for one in args), **kwargs)

    return call


def _alone(_original: Callable[..., None]) -> Callable[..., None]:
    """As it is without a GPU: it passes everything on to its module."""

    def init(self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:  # noqa: ARG001
        nn.Module.__init__(self)
        self.module, self.device_ids, self.output_device, self.dim = module, [], output_device, dim

    return init


def _on_the_host(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(
        self: Any, module: Any, _device_ids: Any = None, _output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        original(self, module, None, None, *args, **{name: one for name, one in kw.items() if name not in _DEVICES})

    return init
