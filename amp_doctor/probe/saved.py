"""How many bytes one forward pass saves for backward, by torch's own saved-tensor hooks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.probe.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable


# Which hooks are in force; releases up to 2.6 do not tell.
_TOP: Callable[[bool], Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


class _Pushed(threading.local):
    """How many hooks are in force in a thread."""

    count = 0


_pushed = _Pushed()


def watch_hooks(patches: Patches) -> None:
    """Where torch does not tell which hooks are in force, they are counted as they come and go."""
    if _TOP is None:
        _pushed.count = 0
        for name, change in (("_push_saved_tensors_default_hooks", 1), ("_pop_saved_tensors_default_hooks", -1)):
            patches.wrap(torch._C._autograd, name, _counted(change))


def _counted(change: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            _pushed.count += change
            return original(*args)

        return call

    return make


def others_hooked() -> bool:
    """Whether the script's own hooks are in force, or it has them refused.

    Only the innermost are called, and a checkpoint needs its own; `torch.func.grad` raises when there are any.
    """
    hooked = _TOP(True) is not None if _TOP is not None else _pushed.count > 0
    allowed = getattr(torch._C._autograd, "_saved_tensors_hooks_is_enabled", lambda: True)
    return hooked or not allowed()


def in_backward() -> bool:
    """Whether a backward pass is under way in this thread: what runs forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


class SavedTensors:
    """Sees every tensor that is saved; hands it back as it is."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._on = False
        self._patches = Patches()

    def start(self) -> None:
        """From now on, until `stop`; the script's own hooks nest inside, and where it has them refused we make way."""
        torch._C._autograd._push_saved_tensors_default_hooks(self._pack, _unpack)
        self._on = True
        self._patches.wrap(torch._C._autograd, "_saved_tensors_hooks_disable", self._make_way)

    def stop(self) -> None:
        """No more."""
        self._patches.undo()
        if self._on:
            self._on = False
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def _make_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            return original(*args, **kwargs)

        return refuse

    @property
    def bytes(self) -> int:
        """The size of the distinct storages that were saved; parameters are there anyway and do not count."""
        return sum(self._seen.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad) and type(tensor) is Tensor and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor


def _unpack(tensor: Tensor) -> Tensor:
    return tensor
