"""GradScaler and autocast: what the script asks for, and the calibration that widens it.

While calibrating, autocast regions run in BF16 (where the GPU has it natively) or not at all, and the scaler scales by
1: gradients that FP16 would have rounded to zero are seen, and a step whose gradients are infinite even so is skipped,
as the script relies on. A scaler stays as it was at its last `scale`, so that `unscale_`, `step` and `update` of one
step always agree.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler

from amp_doctor.probe.depth import Depth
from amp_doctor.probe.dtypes import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amp_doctor.probe.patches import Patches
    from amp_doctor.probe.session import Session

_METHODS = ("scale", "unscale_", "step", "update")


class Scalers:
    """Wraps the four methods of every GradScaler class, and `__enter__` and `__exit__` of autocast."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches: Patches | None = None
        self._wrapped: set[type] = set()
        self._depth = Depth()
        # Scaler -> whether it scales by 1 only, decided at each `scale`.
        self._passing: WeakKeyDictionary[GradScaler, bool] = WeakKeyDictionary()
        self.autocast: set[str] = set()
        # The regions that the script is in, and whether it has them on, calibrating or not.
        self._regions: list[tuple[autocast, bool]] = []
        self.used = False
        self.widened = False

    def patch(self, patches: Patches) -> None:
        """Wrap what is loaded, and each subclass when it is first constructed (FSDP's comes late)."""
        self._patches = patches
        self._wrap_class(GradScaler)
        patches.wrap(GradScaler, "__init__", self._init)
        patches.wrap(autocast, "__enter__", self._enter)
        patches.wrap(autocast, "__exit__", self._exit)

    @property
    def inside(self) -> bool:
        """Whether the script has autocast on at this moment, as it is written."""
        return bool(self._regions) and self._regions[-1][1]

    @property
    def outside(self) -> bool:
        """Whether the script uses autocast, and has it off at this moment: what is computed now stays as it is."""
        return bool(self.autocast) and not self.inside

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(scaler: GradScaler, *args: Any, **kwargs: Any) -> None:
            if self._session.active:
                for cls in type(scaler).__mro__:
                    if issubclass(cls, GradScaler):
                        self._wrap_class(cls)
            original(scaler, *args, **kwargs)

        return init

    def _wrap_class(self, cls: type) -> None:
        if cls in self._wrapped or self._patches is None:
            return
        self._wrapped.add(cls)
        for name in _METHODS:
            if name in vars(cls):
                self._patches.wrap(cls, name, getattr(self, f"_{name.strip('_')}"))

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            if not self._session.active or self._depth:
                return original(scaler, outputs)
            imposed = self._session.imposed
            self._passing[scaler] = self._session.calibrating or (imposed is not None and imposed.passes_scaler)
            result = self._call(original, scaler, outputs)
            if scaler.is_enabled():
                self.used = True
                if self._passing[scaler]:
                    self.widened = True
                else:
                    with self._session.guard("loss scale"):
                        self._mark(scaler, result)
            return result

        return scale

    def _unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale_(scaler: GradScaler, optimizer: Any) -> Any:
            return self._call(original, scaler, optimizer)

        return unscale_

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._session.active or self._depth or not scaler.is_enabled():
                return self._call(original, scaler, optimizer, *args, **kwargs)
            steps = self._session.steps
            steps.scaler_begins(optimizer)
            result = self._call(original, scaler, optimizer, *args, **kwargs)
            # Not in a `finally`: a step that raised is no attempt. A step let pass says nothing about the scale.
            found_inf, tried = _found_inf(scaler, optimizer), not self._passing.get(scaler, False)
            steps.scaler_ends(optimizer, found_inf, _scale_of(scaler) if tried or found_inf else None)
            return result

        return step

    def _update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs:  # the script sets the scale itself
                return original(scaler, *args, **kwargs)
            return self._call(original, scaler)

        return update

    def _call(self, original: Callable[..., Any], scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the scaler, with a scale of 1 while it passes losses through."""
        passing = self._session.active and scaler.is_enabled() and self._passing.get(scaler, False)
        with self._depth, _scaling_by_one(scaler) if passing else nullcontext():
            return original(scaler, *args, **kwargs)

    def _mark(self, scaler: GradScaler, outputs: Any) -> None:
        """When a backward pass reaches a scaled loss, the scale of this moment is in force."""
        scale = _scale_of(scaler)
        for one in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(lambda _: self._session.gradients.enter_scale(scale))

    def _enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(region: autocast) -> Any:
            if self._session.active:
                self._regions.append((region, region._enabled))
            if not self._session.active or not region._enabled:
                return original(region)
            self.autocast.add(dtype_name(region.fast_dtype))
            if not self._session.calibrating or region.fast_dtype is torch.float64:
                return original(region)
            self.widened = True
            dtype = region.fast_dtype
            try:
                if self._session.native_bf16 and region.device == "cuda":
                    region.fast_dtype = torch.bfloat16
                else:
                    region._enabled = False
                return original(region)
            finally:
                region._enabled, region.fast_dtype = True, dtype

        return enter

    def _exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(region: autocast, *raised: Any) -> Any:
            if any(region is one for one, _ in self._regions):
                while self._regions.pop()[0] is not region:
                    pass
            return original(region, *raised)

        return leave


@contextmanager
def _scaling_by_one(scaler: GradScaler) -> Iterator[None]:
    """What grows or shrinks meanwhile is not the scaler's own scale."""
    own, first = scaler._scale, scaler._init_scale
    # Without a scale yet, the first `scale` makes one of `_init_scale`.
    scaler._init_scale = 1.0
    if own is not None:
        scaler._scale = torch.ones_like(own)
    try:
        yield
    finally:
        scaler._init_scale = first
        if scaler._scale is not None:
            scaler._scale = torch.full_like(scaler._scale, first) if own is None else own


def _scale_of(scaler: GradScaler) -> float:
    scale = scaler._scale
    return float(scale.item()) if scale is not None else 1.0


def _found_inf(scaler: GradScaler, optimizer: Any) -> bool:
    """Whether the scaler met an infinity; for fused optimizers this is what makes their kernel skip."""
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(value.item()) for value in found.values())
