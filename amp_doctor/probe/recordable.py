"""Whether a step of this process can be recorded, and replayed by this process alone.

Under plain DistributedDataParallel it can: every rank has the whole model, and gradients are averaged by hooks of the
parameters, which the copies in a replay do not have; what is compared is this rank's own gradient. What talks to other
ranks inside the forward or backward pass would wait for them forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_doctor.probe.device_count import on_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from amp_doctor.probe.session import Session

# No reason that anybody has to be told.
OTHER_RANK = "rank 0 records for all ranks"
# Class of a module -> why its forward pass cannot be replayed by one rank.
_SHARED = {
    "FullyShardedDataParallel": "the model is sharded over several ranks (FullyShardedDataParallel)",
    "SyncBatchNorm": "SyncBatchNorm exchanges its statistics between the ranks inside the forward pass",
}
# Attribute of DistributedDataParallel -> likewise.
_SETTINGS = {
    "static_graph": "DistributedDataParallel with static_graph=True averages gradients inside the backward pass",
    "mixed_precision": "DistributedDataParallel casts the weights by itself (mixed_precision)",
}
_COLLECTIVES = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd"))


def unrecordable(session: Session) -> str:
    """Why no step is recorded here; empty when one can be."""
    if session.device is not None and not on_host(session.device):
        return f"the model is on {session.device.type}; steps are recorded on the CPU only"
    if ranks() < 2:
        return ""
    if torch.distributed.get_rank():
        return OTHER_RANK
    found = (_reason(module) for module, _ in session.names.modules())
    return next((reason for reason in found if reason), "")


def ranks() -> int:
    """The processes of the job, as far as the script has made a process group."""
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _reason(module: nn.Module) -> str:
    kind = type(module).__name__
    if kind == "DistributedDataParallel":
        return next((reason for name, reason in _SETTINGS.items() if getattr(module, name, None)), "")
    if any(type(one).__name__ == "DTensor" for one in module._parameters.values()):
        return "parameters are sharded over several ranks (DTensor)"
    return _SHARED.get(kind, "")


class Alone(TorchDispatchMode):
    """Raises RuntimeError where something inside would talk to other ranks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiled runs inside: torch._dynamo, which takes seconds to import, need not be told."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _COLLECTIVES:
            raise RuntimeError(
                f"{func._opname.strip('_')} exchanges tensors with ranks that take no part in the replay"
            )
        call: Callable[..., Any] = func
        return call(*args, **(kwargs or {}))
