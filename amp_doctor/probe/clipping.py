"""Where gradients are clipped while they are still multiplied by the loss scale.

What has been clipped is remembered until a scaler unscales an optimizer of the same parameters: by `unscale_`, or in
`step` where that was not called. Steps that are calibrated are left out, as the scale is 1 in them.
"""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState

from amp_doctor.diagnosis.profile import CLIPPED
from amp_doctor.probe.names import own_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Source
    from amp_doctor.probe.patches import Patches
    from amp_doctor.probe.session import Session

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


class Clipping:
    """Wraps torch's two functions that clip, and what ends the time in which gradients are scaled."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Of each clip since the last step: the ids of its parameters, and its line.
        self._open: list[tuple[frozenset[int], Source]] = []

    def patch(self, patches: Patches) -> None:
        """Both names of each function get the same wrapper: it may be pickled by either."""
        for name in _CLIPS:
            patches.wrap(nn.utils.clip_grad, name, self._clip)
            patches.replace(nn.utils, name, getattr(nn.utils.clip_grad, name))
        patches.wrap(GradScaler, "unscale_", self._unscales)
        patches.wrap(GradScaler, "step", self._unscales)

    @property
    def _looking(self) -> bool:
        """Until one was found; not where no scaler scales."""
        session = self._session
        scales = session.active and session.scalers.used and not session.calibrating and not session.trial
        return scales and CLIPPED not in session.places

    def _clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._looking:
                return original(parameters, *args, **kwargs)
            listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            if (line := own_line()) is not None:
                self._open.append((frozenset(map(id, listed)), line))
            if isinstance(parameters, GeneratorType):  # it is used up, and torch warns of one that is empty
                parameters = (one for one in listed)
            elif not isinstance(parameters, Tensor):
                parameters = listed
            return original(parameters, *args, **kwargs)

        return clip

    def _unscales(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscales(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._open:
                with self._session.guard("clipped gradients"):
                    self._judge(scaler, optimizer)
            return original(scaler, optimizer, *args, **kwargs)

        return unscales

    def _judge(self, scaler: GradScaler, optimizer: Any) -> None:
        """What was clipped of this optimizer before now has the scale in it, unless it is unscaled already."""
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        met = [line for ids, line in self._open if not own.isdisjoint(ids)]
        self._open = [(ids, line) for ids, line in self._open if own.isdisjoint(ids)]
        state = scaler._per_optimizer_states.get(id(optimizer))
        scaled = scaler.is_enabled() and (state is None or state["stage"] is OptState.READY)
        if met and scaled and scaler._scale is not None and float(scaler._scale) > 1:
            self._session.places.setdefault(CLIPPED, met[0])
