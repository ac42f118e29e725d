"""Backward passes: the loss they start from, the loss scale in force, and the gradients of the parameters.

A parameter's gradient is counted as a backward pass delivers it, before it is accumulated, averaged over ranks,
unscaled or clipped: this is the value that low precision has to hold. Sharded parameters (DTensor) get no tensor
hooks from FSDP2; theirs are counted after accumulation. What `torch.autograd.grad` is asked for with respect to inputs
(a gradient penalty, the residual of a differential equation) updates no weight, and is not counted: a loss scale does
not multiply it.
"""

from __future__ import annotations

from functools import partial
from math import isfinite, log2
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from amp_doctor.diagnosis.profile import BACKWARD, WEIGHT_GRAD
from amp_doctor.probe.count import countable
from amp_doctor.probe.depth import Depth
from amp_doctor.probe.names import calling_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.utils.hooks import RemovableHandle

    from amp_doctor.diagnosis.profile import Source
    from amp_doctor.probe.patches import Patches
    from amp_doctor.probe.session import Session


class Gradients:
    """Knows which backward pass is under way and what its loss was multiplied by."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handles: list[RemovableHandle] = []
        self._hooked = WeakIdKeyDictionary()
        # Whether the pass under way is one of those.
        self.inner = False
        # Reentrant checkpoints start one backward pass inside another.
        self.depth = Depth()
        # The loss scale in force is `scale`: 2^shift times `rest`, which is 1 for a power of two.
        self.scale = 1.0
        self.shift = 0
        self.rest = 1.0
        # Whether the closure of the step under way was evaluated before.
        self._evaluated = False
        # Losses of the step under way: detached, so that nothing is read back before the step ends.
        self.losses: list[tuple[Tensor, float]] = []
        # Where the last of them was handed to its backward pass.
        self.line: Source | None = None

    def patch(self, patches: Patches) -> None:
        """See every backward pass, through which `Tensor.backward` goes too, and what optimizers are given to step."""
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(torch.autograd, "grad", self._grad)
        patches.wrap(torch.optim.Optimizer, "add_param_group", self._add_param_group)

    def remove(self) -> None:
        """Take the hooks off all parameters."""
        while self._handles:
            self._handles.pop().remove()
        self._hooked.clear()

    def hook(self, parameters: Iterable[Any]) -> None:
        """Count the gradients of these parameters; those that need none yet are asked again."""
        for parameter in parameters:
            if isinstance(parameter, Tensor) and parameter.requires_grad and parameter.is_leaf:
                if parameter in self._hooked or is_lazy(parameter):
                    continue
                self._hooked[parameter] = True
                if hasattr(parameter, "to_local"):
                    handle = parameter.register_post_accumulate_grad_hook(self._accumulated)
                else:
                    # The owner is asked when the hook fires: an optimizer may know a parameter before its module does.
                    handle = parameter.register_hook(partial(self._gradient, parameter))
                self._handles.append(handle)

    def enter_scale(self, scale: float) -> None:
        """The backward pass that starts now comes from a loss multiplied by `scale`."""
        self.scale = scale
        self.shift = round(log2(scale)) if scale > 0 and isfinite(scale) else 0
        self.rest = scale / 2.0**self.shift if scale > 0 and isfinite(scale) else 1.0

    def _gradient(self, parameter: Tensor, gradient: Tensor) -> None:
        if self._session.counting:
            self._count(parameter, gradient)

    def _accumulated(self, parameter: Tensor) -> None:
        if self._session.counting and parameter.grad is not None:
            self._count(parameter, parameter.grad)

    def _count(self, parameter: Tensor, gradient: Tensor) -> None:
        with self._session.guard("weight gradients"), torch._C.DisableTorchFunction():
            record = self._session.names.owner(parameter)
            values = countable(gradient) if self._session.wanted(record) else None
            if values is not None:
                self._session.sites.add(record, WEIGHT_GRAD, values, "backward", scaled=True)

    def _add_param_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: torch.optim.Optimizer, param_group: Any) -> Any:
            result = original(optimizer, param_group)
            if self._session.active and self._session.profile is None:
                with self._session.guard("weight gradients"):
                    self.hook(optimizer.param_groups[-1]["params"])
            return result

        return add_param_group

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._session.active or self.depth:
                return original(tensors, *args, **kwargs)
            return self._run(original, tensors, args, kwargs, is_loss=True)

        return backward

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._session.active or self.depth:
                return original(outputs, *args, **kwargs)
            self.inner = not self._asks_for_weights(args[0] if args else kwargs.get("inputs"))
            try:
                result = self._run(original, outputs, args, kwargs, is_loss=False)
            finally:
                self.inner = False
            if self.scale != 1:
                self._session.nonfinite.scaled_gradients_asked()
            return result

        return grad

    def _asks_for_weights(self, inputs: Any) -> bool:
        """Whether parameters are among what is differentiated with respect to."""
        asked = [inputs] if isinstance(inputs, Tensor) else list(inputs or ())
        tensors = [one for one in asked if isinstance(one, Tensor)]
        return any(isinstance(one, torch.nn.Parameter) or one in self._hooked for one in tensors)

    def _run(
        self, original: Callable[..., Any], tensors: Any, args: Any, kwargs: dict[str, Any], *, is_loss: bool
    ) -> Any:
        self.scale, self.shift, self.rest = 1.0, 0, 1.0
        self._session.backward_starts()
        try:
            with self.depth:
                result = original(tensors, *args, **kwargs)
        finally:
            if is_loss:
                with self._session.guard("loss"), torch._C.DisableTorchFunction():
                    self._keep_loss(tensors)
                    self.line = calling_line()
                    self._session.place(BACKWARD)
        self._session.backward_ends()
        return result

    def _keep_loss(self, tensors: Any) -> None:
        """The scalars that a backward pass began at; of a closure those of its first evaluation."""
        if self._session.steps.stepping:
            if self._evaluated:
                return
            self._evaluated = True
        for root in [tensors] if isinstance(tensors, Tensor) else list(tensors):
            if isinstance(root, Tensor) and root.numel() == 1 and root.is_floating_point():
                # The scale came in when the backward pass reached the scaled loss.
                self.losses.append((root.detach().clone(), self.scale))

    def step_begins(self) -> None:
        """An optimizer is about to step; it may call a closure, and LBFGS does so many times."""
        self._evaluated = False
