"""FP32 from weights that are changed in the fourth digit: how far rounding alone drives the losses of a script apart.

Training that is at the edge of its learning rate, or that plays a game, ends elsewhere after any rounding; that it ends
elsewhere in float16 does not speak against float16 then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from amp_doctor.probe.depth import Depth

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.patches import Patches

# Half the distance between two float16 numbers, relative to them: what rounding to float16 changes at most.
SIZE = 2.0**-11


class Shaking:
    """Multiplies each parameter by 1 plus or minus `SIZE`, once, when an outermost module that holds it is called."""

    def __init__(self) -> None:
        self._calls = Depth()
        self._met = WeakIdKeyDictionary()
        # Of its own: the script's random numbers stay what they are. All ranks have the same.
        self._signs = torch.Generator().manual_seed(0)

    def install(self, patches: Patches) -> None:
        """From now on."""
        patches.wrap(nn.Module, "__call__", self._call)

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._calls:
                self._shake(module)
            with self._calls:
                return original(module, *args, **kwargs)

        return call

    def _shake(self, module: nn.Module) -> None:
        parameters: list[Any] = list(module.parameters())
        for parameter in parameters:
            if parameter in self._met or is_lazy(parameter) or hasattr(parameter, "to_local"):
                continue
            self._met[parameter] = True
            if parameter.is_floating_point():
                with torch._C.DisableTorchFunction():
                    signs = torch.randint(0, 2, parameter.shape, generator=self._signs).to(parameter.device)
                    # Not the parameter itself: a graph that holds it must not be told.
                    parameter.data.mul_(1 + SIZE * (2.0 * signs - 1))
