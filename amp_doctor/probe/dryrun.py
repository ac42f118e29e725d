"""`with DryRun():` a script written for CUDA runs on the CPU, under CUDA's autocast rules.

Imitated: the policy of autocast with its weight cache; the dtypes of everything that follows; half matrix products,
convolutions and recurrent layers in float32 from rounded inputs with rounded results, forward and backward; the scaler
(the real one); CUDA's own errors of autocast; devices, streams, events, memory and random numbers by name.

Not imitated: cuDNN's and cuBLAS's order of summation, TF32, rounding between the time steps of a fused recurrent layer
or inside fused attention, copies between host and device, devices told apart (`x.device` is the CPU, and nothing raises
when a tensor was left there), several GPUs in one process (DataParallel has one), NCCL (Gloo stands in), CUDA graphs
(refused), optimizers with `capturable=True` (torch refuses them), custom CUDA and Triton kernels, FFTs in half, other
threads than the one that entered.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.amp import autocast_mode

from amp_doctor.probe.arrivals import Arrivals
from amp_doctor.probe.device import dry_runs
from amp_doctor.probe.dryrun_cuda import pretend
from amp_doctor.probe.dryrun_devices import redirect
from amp_doctor.probe.dryrun_kernels import Kernels
from amp_doctor.probe.dryrun_ranks import SHARDING, regroup, shard
from amp_doctor.probe.dryrun_sync import synchronise
from amp_doctor.probe.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

# Names of the one device that there is: a script may ask a tensor for it, which answers `cpu`.
_ONE_DEVICE = ("cpu", "cuda")


class DryRun:
    """Between `__enter__` and `__exit__` `cuda` is the CPU; what is made inside are ordinary CPU tensors."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._kernels = Kernels()
        self._arrivals = Arrivals({SHARDING: lambda: shard(self._patches)})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """From now on, in this thread."""
        # Before torch takes its kernels back, which it does at exit.
        atexit.register(self.stop)
        dry_runs.append(self)
        self._kernels.install()
        pretend(self._patches)
        redirect(self._patches)
        regroup(self._patches)
        synchronise(self._patches)
        self._autocast()
        self._arrivals.install()

    def stop(self) -> None:
        """Give everything back; twice is once."""
        atexit.unregister(self.stop)
        if self in dry_runs:
            dry_runs.remove(self)
        self._arrivals.remove()
        self._patches.undo()
        self._kernels.remove()

    def _autocast(self) -> None:
        """All regions are CUDA's; the cache of weights ends with the outermost."""
        patches = self._patches
        patches.wrap(autocast_mode.autocast, "__init__", self._init)
        patches.wrap(torch, "clear_autocast_cache", self._clear)
        for name in ("is_autocast_enabled", "get_autocast_dtype"):
            patches.wrap(torch, name, _asking)
        for name in ("set_autocast_enabled", "set_autocast_dtype"):
            patches.wrap(torch, name, _asking)
        # Of custom autograd Functions: it looks for tensors of the device type that it is told.
        patches.wrap(autocast_mode, "_cast", _function_cast)

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(region: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
            original(region, "cuda" if device_type == "cpu" else device_type, *args, **kwargs)

        return init

    def _clear(self, original: Callable[[], None]) -> Callable[[], None]:
        def clear_autocast_cache() -> None:
            self._kernels.casts.clear()
            original()

        return clear_autocast_cache


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any) -> Any:
        return original("cuda", *args[1:]) if args and args[0] in _ONE_DEVICE else original(*args)

    return ask


def _function_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return original(value, "cpu" if device_type == "cuda" else device_type, dtype)

    return cast
