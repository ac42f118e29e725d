"""The settings a step is replayed under, as the opt levels are called since apex, and how they are put in force."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.numerics.formats import FP16, FP32
from amp_doctor.probe.dryrun_autocast import AUTOCAST, Casts
from amp_doctor.probe.dryrun_kernels import HALF, Kernels

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Precision:
    """`autocast` is the dtype of an autocast region around the whole step; `weights` that of the model and its inputs.

    `norms` says that normalisation layers stay in FP32 although the weights do not.
    """

    name: str
    autocast: torch.dtype | None = None
    weights: torch.dtype | None = None
    norms: bool = False

    @property
    def low(self) -> torch.dtype:
        """The reduced dtype."""
        return self.autocast or self.weights or torch.float16


O1_FP16 = Precision("O1/float16", autocast=torch.float16)
O1_BF16 = Precision("O1/bfloat16", autocast=torch.bfloat16)
O2_FP16 = Precision("O2/float16", weights=torch.float16, norms=True)
O3_FP16 = Precision("O3/float16", weights=torch.float16)
# No setting at all: what the script itself makes half by `.half()` and `dtype=`.
WRITTEN = Precision("O0/float16")
PRECISIONS = (O1_FP16, O1_BF16, O2_FP16, O3_FP16, WRITTEN)


class Counted(Casts):
    """Counts the casts that autocast inserts, and those that make infinities of finite numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        # The largest magnitudes that became infinite, by sign: a mask added to attention is negative.
        self.above = self.below = 0.0

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """As autocast does."""
        result = super().cast(value, dtype)
        if isinstance(value, Tensor) and result is not value:
            self.count += 1
            if dtype is torch.float16 and value.numel():
                low, high = (float(limit) for limit in torch.aminmax(value.detach()))
                if FP16.overflow_threshold <= high < inf:
                    self.above = max(self.above, high)
                if -FP32.max < low <= -FP16.overflow_threshold:
                    self.below = max(self.below, -low)
        return result


class Rules:
    """CUDA's arithmetic for CPU tensors, switched on call by call."""

    def __init__(self, precision: Precision) -> None:
        self.casts = Counted()
        self._precision = precision
        self._kernels = Kernels()
        self._kernels.casts = self.casts

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The kernels are registered inside, but off."""
        autocast = self._precision.autocast
        before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        keys = [(key, torch._C._dispatch_tls_is_dispatch_key_included(key)) for key in (HALF, AUTOCAST)]
        self._kernels.install()
        self._switch(on=False)
        try:
            torch.set_autocast_enabled("cuda", autocast is not None)
            torch.set_autocast_dtype("cuda", self._precision.low)
            yield
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
            self._kernels.remove()
            # A dry run around us goes on.
            for key, on in keys:
                torch._C._dispatch_tls_set_dispatch_key_included(key, on)
                if key == HALF:
                    torch._C._dispatch_tls_set_dispatch_key_excluded(key, not on)

    @contextmanager
    def on(self, *, autocast: bool = True) -> Iterator[None]:
        """In force inside; a backward pass is none of an autocast region's."""
        self._switch(on=True, autocast=autocast)
        try:
            yield
        finally:
            self._switch(on=False)

    def _switch(self, *, on: bool, autocast: bool = True) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(HALF, on)
        torch._C._dispatch_tls_set_dispatch_key_excluded(HALF, not on)
        casts = on and autocast and self._precision.autocast is not None
        torch._C._dispatch_tls_set_dispatch_key_included(AUTOCAST, casts)
