"""Outputs of modules and the gradients that reach them, by one global forward hook.

Module-level backward hooks raise on models that edit an output in place and change gradient bits; a tensor hook set on
the output inside the forward hook does neither (measured on torch 2.13).
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from amp_doctor.diagnosis.profile import ACTIVATION, ACTIVATION_GRAD
from amp_doctor.probe.count import countable
from amp_doctor.probe.operators import Operators
from amp_doctor.probe.saved import in_backward, others_hooked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.hooks import RemovableHandle

    from amp_doctor.probe.names import Record
    from amp_doctor.probe.session import Session


class Activations:
    """Owns the global hooks; they are taken away for steps that are not counted."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handles: list[RemovableHandle] = []
        self._thread = threading.get_ident()
        self._stack: list[nn.Module] = []
        self._operators: Operators | None = None
        # Output already counted -> itself and its version: a container returns the tensor of its last child.
        self._fresh: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def install(self) -> None:
        """Listen to every module called from now on."""
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
            ]

    def remove(self) -> None:
        """Listen no more; tensor hooks already set fire for the backward pass under way."""
        while self._handles:
            self._handles.pop().remove()
        self.rest()

    def rest(self) -> None:
        """Between two steps no forward pass is under way, whatever exceptions have left behind."""
        self._stack.clear()
        self._fresh.clear()
        if self._operators is not None:
            self._operators.stop()
            self._operators = None

    @property
    def innermost(self) -> Record | None:
        """The layer whose forward is being run."""
        return self._session.names.of(self._stack[-1]) if self._stack else None

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        # What torch.jit.trace sees becomes part of what it makes, our counting too.
        if threading.get_ident() != self._thread or torch._C._is_tracing():
            return
        with self._session.guard("activations"):
            if not self._stack:
                self._session.root_enters(module)
                wanted = torch.is_grad_enabled() and self._session.counting and not self._session.trial
                if wanted and self._operators is None:
                    self._operators = Operators(self._session)
                    self._operators.start()
            self._stack.append(module)

    def _leave(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if threading.get_ident() != self._thread or module not in self._stack:
            return
        with self._session.guard("activations"), torch._C.DisableTorchFunction():
            while self._stack.pop() is not module:
                pass
            # A non-reentrant checkpoint runs again what was counted; a reentrant one ran without gradients before.
            again = in_backward() and others_hooked()
            wanted = torch.is_grad_enabled() and self._session.counting and not self._session.trial
            if wanted and output is not None and not again:
                self._count(module, output)
            if not self._stack:
                self.rest()
                self._session.root_leaves(module)

    def _count(self, module: nn.Module, output: Any) -> None:
        names = self._session.names
        record = names.of(module)
        if record is None:
            record = names.meet_inside(module, self.innermost)
        if record.order < 0:
            names.called(record)
        if not self._session.wanted(record):
            return
        for tensor in tensors(output):
            values = countable(tensor)
            if values is None or self._already(tensor):
                continue
            self._session.sites.add(record, ACTIVATION, values, "forward")
            # The gradient of a loss with respect to itself is 1, whatever the model.
            if tensor.requires_grad and tensor.dim() and not record.is_loss:
                tensor.register_hook(partial(self._gradient, record))
                self._session.replaying.returned(tensor, record)

    def _already(self, tensor: Tensor) -> bool:
        met = self._fresh.get(id(tensor))
        if met is not None and met[0]() is tensor and met[1] == tensor._version:
            return True
        self._fresh[id(tensor)] = (weakref.ref(tensor), tensor._version)
        return False

    def _gradient(self, record: Record, gradient: Tensor) -> None:
        session = self._session
        if session.counting and not session.gradients.inner:
            with session.guard("activation gradients"), torch._C.DisableTorchFunction():
                values = countable(gradient)
                if values is not None:
                    session.sites.add(record, ACTIVATION_GRAD, values, "backward", scaled=True)


def tensors(output: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors in an output: itself, or those in tuples, lists, dicts and dataclasses, three levels deep."""
    if isinstance(output, Tensor):
        yield output
        return
    if depth == 0:
        return
    if isinstance(output, dict):
        inside: Any = output.values()
    elif isinstance(output, (tuple, list)):
        inside = output
    elif is_dataclass(output) and not isinstance(output, type):
        inside = [getattr(output, one.name, None) for one in fields(output)]
    else:
        return
    for one in inside:
        yield from tensors(one, depth - 1)
