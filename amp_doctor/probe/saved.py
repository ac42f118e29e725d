"""How many bytes one forward pass saves for backward, by torch's own saved-tensor hooks."""

from __future__ import annotations

import torch
from torch import Tensor


def others_hooked() -> bool:
    """Whether the script's own hooks are in force: only the innermost are called, and a checkpoint needs its own."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def in_backward() -> bool:
    """Whether a backward pass is under way in this thread: what runs forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


class SavedTensors:
    """Sees every tensor that is saved; hands it back as it is."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._on = False

    def start(self) -> None:
        """From now on, until `stop`; regions of the script's own hooks nest inside."""
        torch._C._autograd._push_saved_tensors_default_hooks(self._pack, _unpack)
        self._on = True

    def stop(self) -> None:
        """No more."""
        if self._on:
            self._on = False
            torch._C._autograd._pop_saved_tensors_default_hooks()

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
