"""A loss scale for a script that has none: the loss is multiplied, and each gradient divided as it reaches its leaf.

What lies between is what a GradScaler would let float16 see. Gradients are in true units when the script gets them, so
that it may clip and accumulate as it always did. A step with an infinite gradient is skipped: the optimizer finds no
gradients, and the scale is halved.

Left out: `torch.autograd.grad`, whose results are the script's own; optimizers with a closure, which no GradScaler
takes either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from amp_doctor.probe.depth import Depth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.utils.hooks import RemovableHandle

    from amp_doctor.probe.patches import Patches
    from amp_doctor.probe.session import Session

BACKOFF = 0.5


class LossScaling:
    """Does nothing once a scaler of the script is in use: that one scales."""

    def __init__(self, init_scale: float) -> None:
        self.scale = init_scale
        self.session: Session | None = None
        self._backwards = Depth()
        self._hooked = WeakIdKeyDictionary()
        self._handles: list[RemovableHandle] = []
        self._optimizers: list[Optimizer] = []
        # The scale of the step under way, and whether one of its optimizers met an infinity.
        self._used = 1.0
        self._met = False
        self._dropped: Optimizer | None = None
        # Sharded parameters whose gradients, of earlier backward passes, are multiplied until they are added to.
        self._raised: dict[int, Tensor] = {}

    def patch(self, patches: Patches) -> None:
        """Below the session, which is to see the loss as the script made it."""
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(Optimizer, "add_param_group", self._add_param_group)
        self._handles.append(register_optimizer_step_pre_hook(self._steps))

    def remove(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop().remove()
        self._hooked.clear()
        self._optimizers.clear()

    @property
    def active(self) -> bool:
        """Whether it is this one that scales."""
        return self.session is not None and self.session.active and not self.session.scalers.used

    def hook(self, parameters: Iterable[Any]) -> None:
        """Divide what reaches these leaves."""
        for one in parameters:
            leaf = isinstance(one, Tensor) and one.requires_grad and one.is_leaf
            if not leaf or one in self._hooked:
                continue
            self._hooked[one] = sharded = hasattr(one, "to_local")
            self._handles.append(
                one.register_post_accumulate_grad_hook(self._divided_whole)
                if sharded
                else one.register_hook(self._divided)
            )

    def taken(self, optimizer: Optimizer) -> tuple[float, bool]:
        """The scale under which an optimizer has just stepped, and whether that step was made void."""
        dropped, self._dropped = self._dropped is optimizer, None
        return self._used, dropped

    def _divided(self, gradient: Tensor) -> Tensor:
        return gradient / self._used if self._used != 1.0 else gradient

    def _raise(self) -> None:
        """What a sharded parameter has accumulated is divided together with what is added to it."""
        for parameter, sharded in self._hooked.items():
            if sharded and parameter.grad is not None:
                self._raised[id(parameter)] = parameter
                _multiply(parameter.grad, self._used)

    def _divided_whole(self, parameter: Tensor) -> None:
        self._raised.pop(id(parameter), None)
        if parameter.grad is not None and self._used != 1.0:
            _multiply(parameter.grad, 1 / self._used)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._backwards or not self.active or self.session is None:
                return original(tensors, grad_tensors, *args, **kwargs)
            if self._met:
                self.scale *= BACKOFF
                self._met = False
            for optimizer in self._optimizers:
                self.hook(p for group in optimizer.param_groups for p in group["params"])
            self._used = self.scale
            self._raise()
            self.session.gradients.enter_scale(self._used)
            try:
                with self._backwards:
                    return original(*self._scaled(tensors, grad_tensors), *args, **kwargs)
            finally:
                for parameter in list(self._raised.values()):
                    self._divided_whole(parameter)
                # The loss that the session keeps was never multiplied.
                self.session.gradients.enter_scale(1.0)

        return backward

    def _scaled(self, tensors: Any, grads: Any) -> tuple[list[Tensor], list[Any]]:
        """Roots without a gradient are multiplied, in float32 as by a GradScaler; gradients that are given as well."""
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given = [grads] if grads is None or isinstance(grads, Tensor) else list(grads)
        given += [None] * (len(roots) - len(given))
        scaled: list[Tensor] = []
        out: list[Any] = []
        with torch._C.DisableTorchFunction():
            for root, grad in zip(roots, given, strict=False):
                factor = torch.tensor(self._used, device=root.device)
                scaled.append(root * factor if grad is None else root)
                out.append(None if grad is None else grad * self._used)
        return scaled, out

    def _add_param_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: Optimizer, param_group: Any) -> Any:
            result = original(optimizer, param_group)
            if all(optimizer is not one for one in self._optimizers):
                self._optimizers.append(optimizer)
            return result

        return add_param_group

    def _steps(self, optimizer: Optimizer, args: Any, _kwargs: Any) -> None:
        if not self.active or (args and callable(args[0])):
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = _finite(p.grad for p in parameters)
        if any(map(self._hooked.get, parameters)):
            finite = _everywhere(finite, parameters[0].device)
        if not finite:
            for parameter in parameters:
                parameter.grad = None
            self._dropped, self._met = optimizer, True


def _multiply(gradient: Any, factor: float) -> None:
    with torch.no_grad():
        (gradient.to_local() if hasattr(gradient, "to_local") else gradient).mul_(factor)


def _everywhere(finite: bool, device: torch.device) -> bool:
    """Whether the shards of all ranks are finite: they step together, or not at all."""
    worst = torch.tensor(float(not finite), device=device)
    torch.distributed.all_reduce(worst, torch.distributed.ReduceOp.MAX)
    return not bool(worst)


def _finite(gradients: Iterable[Any]) -> bool:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        local = (one.to_local() if hasattr(one, "to_local") else one for one in gradients)
        values = [one.coalesce().values() if one.is_sparse else one for one in local]
        return all(bool(one.abs().max().isfinite()) for one in values if one.numel())
