"""Another precision for a script that is not edited: what a Trial asks for, patched in.

Where the script has autocast regions of its own they stay, with another dtype. Where it has none, a region begins with
the forward pass of an outermost module and lasts until the backward pass or the optimizer's step begins: the outermost
call alone would leave out losses that are functions, and a region around the whole script would round what it makes its
inputs and targets of. Without gradients (evaluation) it covers the call alone, for what follows may be the making of
the next batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_doctor.probe.depth import Depth
from amp_doctor.probe.loss_scaling import LossScaling
from amp_doctor.probe.patches import Patches
from amp_doctor.probe.shake import Shaking
from amp_doctor.probe.trial import Trial, seed
from amp_doctor.probe.widen import Widening

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakKeyDictionary

    from torch.utils.hooks import RemovableHandle

    from amp_doctor.probe.session import Session

# Growth factor, backoff factor and growth interval of a GradScaler that is told nothing about them.
_DEFAULTS = (2.0, 0.5, 2000)


class Imposed:
    """`below` before the session is installed, `above` after it; `remove_above` and `remove_below` in between."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self._below, self._above = Patches(), Patches()
        self._widening = Widening() if trial.widen else None
        scaled = trial.dtype == "float16" and trial.init_scale is not None
        self.scaling = LossScaling(trial.init_scale or 1.0) if scaled else None
        self._dtype: torch.dtype = getattr(torch, trial.dtype or "float32")
        self._session: Session | None = None
        self._region: autocast | None = None
        self._calls, self._backwards = Depth(), Depth()
        self._handles: list[RemovableHandle] = []
        from weakref import WeakKeyDictionary as Weak

        # Module -> whether it stays in float32, once its name is known; and the roots that have been met.
        self._kept: WeakKeyDictionary[nn.Module, bool] = Weak()
        self._met: WeakKeyDictionary[nn.Module, bool] = Weak()

    @property
    def passes_scaler(self) -> bool:
        """Whether a scaler of the script is to scale by 1: only float16 needs one."""
        return self.trial.dtype == "bfloat16"

    def below(self) -> None:
        """Seed, and what the session is not to see."""
        torch.manual_seed(seed())
        if self.trial.shaken:
            Shaking().install(self._below)
        if self._widening is not None:
            self._widening.install(self._below)
        if self.scaling is not None:
            self.scaling.patch(self._below)
        if self.trial.imposes:
            self._below.wrap(torch.autograd, "backward", self._backward)

    def above(self, session: Session) -> None:
        """What the session is to see as if the script had asked for it."""
        self._session = session
        if not self.trial.imposes:
            return
        if self.scaling is not None:
            self.scaling.session = session
            self._above.wrap(GradScaler, "__init__", self._init)
        self._above.wrap(autocast, "__enter__", self._enter)
        self._above.wrap(nn.Module, "__call__", self._call)
        self._handles.append(register_optimizer_step_pre_hook(self._steps))

    def remove_above(self) -> None:
        """Twice is once."""
        self._close()
        while self._handles:
            self._handles.pop().remove()
        self._above.undo()

    def remove_below(self) -> None:
        """Twice is once."""
        if self.scaling is not None:
            self.scaling.remove()
        if self._widening is not None:
            self._widening.remove()
        self._below.undo()

    # --- regions ------------------------------------------------------------------------------------------------

    def _enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(region: autocast) -> Any:
            if not region._enabled or region.fast_dtype is torch.float64:
                return original(region)
            dtype, region.fast_dtype = region.fast_dtype, self._dtype
            try:
                return original(region)
            finally:
                region.fast_dtype = dtype

        return enter

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            session = self._session
            if session is None or not session.active:
                return original(module, *args, **kwargs)
            alone = not self._calls and not self._backwards and self._root(module)
            try:
                with self._calls:
                    if self._stays(module):
                        with torch.autocast(_kind(module), enabled=False):
                            return original(module, *map(_float, args), **{key: _float(v) for key, v in kwargs.items()})
                    return original(module, *args, **kwargs)
            finally:
                if alone:
                    self._close()

        return call

    def _root(self, module: nn.Module) -> bool:
        """The forward pass of an outermost module begins; whether the region is to end with it."""
        if module not in self._met:
            self._met[module] = True
            if self.scaling is not None:
                self.scaling.hook(module.parameters())
        if not self.trial.regions or self._region is not None or torch.is_inference_mode_enabled():
            return False
        self._region = torch.autocast(_kind(module), dtype=self._dtype)
        self._region.__enter__()
        return not torch.is_grad_enabled()

    def _close(self) -> None:
        region, self._region = self._region, None
        if region is not None:
            region.__exit__(None, None, None)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._backwards:
                self._close()
            with self._backwards:
                return original(*args, **kwargs)

        return backward

    def _steps(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._close()

    # --- layers and scalers -------------------------------------------------------------------------------------

    def _stays(self, module: nn.Module) -> bool:
        if not self.trial.keep_fp32 or self._session is None:
            return False
        known = self._kept.get(module)
        if known is not None:
            return known
        names = self._session.names
        record = names.of(module)
        if record is None:
            # The session names a root when its hook fires, which is after this: name it by itself until then.
            return False
        shown = {record.path, names.full(record)}
        kept = any(name in shown or name.endswith(f".{record.path}") for name in self.trial.keep_fp32 if record.path)
        self._kept[module] = kept
        return kept

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(scaler: GradScaler, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            if self.trial.init_scale is not None and scaler.is_enabled():
                # As the code to paste makes it: the other arguments as they are by default.
                scaler._init_scale = self.trial.init_scale
                scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval = _DEFAULTS

        return init


def _kind(module: nn.Module) -> str:
    parameter = next(module.parameters(), None)
    kind = parameter.device.type if parameter is not None else ""
    # A dry run makes `cuda` of the CPU.
    return kind or ("cuda" if torch.cuda.is_available() else "cpu")


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
