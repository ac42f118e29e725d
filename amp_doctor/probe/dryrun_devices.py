"""`cuda` as a word for the CPU: every function of torch that takes a device takes this one too.

Only what takes a device is wrapped. Tensors stay CPU tensors and say so (`x.device`); moving one to the device it is on
returns the tensor itself, so that `x.cuda()` and `x.cpu()` make no copies.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.jit import _builtins
from torch.utils import _device

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.patches import Patches

_NEW = ("new_tensor", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")
# While a dry run is on `torch.device` is a class of ours, which takes longer to ask.
_DEVICE: Any = torch.device
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")


def host(device: Any) -> Any:
    """The CPU for `cuda`, `cuda:0` or a number, as a string, a torch.device or an int; everything else as it is."""
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    if isinstance(device, _DEVICE):
        return torch.device("cpu") if device.type == "cuda" else device
    return torch.device("cpu") if type(device) is int else device


def redirect(patches: Patches) -> None:
    """Wrap factories, moves, generators and loading."""
    # Asked for once before anything is wrapped: torch keeps the answer.
    constructors = _device._device_constructors()
    for owner in (torch, torch.fft, torch.sparse):
        for name, function in list(vars(owner).items()):
            if name in _LIKE or (callable(function) and _hashable(function) and function in constructors):
                patches.replace(owner, name, _placed(function))
    for name in ("nested_tensor", "as_nested_tensor"):
        patches.replace(torch.nested, name, _placed(getattr(torch.nested, name)))
    for name in _NEW:
        patches.replace(Tensor, name, _placed(getattr(Tensor, name)))
    for name, method in _METHODS.items():
        patches.replace(Tensor, name, method(getattr(Tensor, name)))
    patches.replace(Tensor, "is_cuda", property(lambda _: True))
    # Of `Module.to`.
    patches.replace(torch._C._nn, "_parse_to", _parse_to(torch._C._nn._parse_to))
    for kind in (torch.storage._StorageBase, torch.storage.TypedStorage):
        patches.replace(kind, "cuda", _itself)
    patches.replace(torch, "device", _Device)
    patches.replace(torch, "Generator", _generator(torch.Generator))
    patches.replace(torch, "load", _loading(torch.load))
    patches.replace(_device.DeviceContext, "__init__", _first_placed(_device.DeviceContext.__init__))


def _hashable(function: Any) -> bool:
    with contextlib.suppress(TypeError):
        hash(function)
        return True
    return False


@cache
def _placed(original: Callable[..., Any]) -> Callable[..., Any]:
    """`device=` is mapped; `pin_memory=` has no meaning here. One wrapper each: TorchScript knows it by its address."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            if kwargs.get("device") is not None:
                kwargs["device"] = host(kwargs["device"])
            kwargs.pop("pin_memory", None)
        return original(*args, **kwargs)

    operator = _builtins._find_builtin(original)
    if operator is not None:
        _builtins._register_builtin(call, operator)
    return _named(call, original)


def _first_placed(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, device: Any) -> None:
        original(self, host(device))

    return _named(init, original)


def _to(original: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], (str, _DEVICE, int)) and not isinstance(args[0], bool):
            args = (host(args[0]), *args[1:])
        if kwargs.get("device") is not None:
            kwargs["device"] = host(kwargs["device"])
        return original(self, *args, **kwargs)

    return _named(to, original)


def _parse_to(original: Callable[..., Any]) -> Callable[..., Any]:
    def parse(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (host(args[0]), *args[1:])
        if kwargs.get("device") is not None:
            kwargs["device"] = host(kwargs["device"])
        return original(*args, **kwargs)

    return _named(parse, original)


def _cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    def cuda(
        self: Tensor,
        device: Any = None,  # noqa: ARG001 - all are one device
        non_blocking: bool = False,  # noqa: ARG001
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Tensor:
        return self.to(memory_format=memory_format) if memory_format is not torch.preserve_format else self

    return _named(cuda, original)


def _pin_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    def pin_memory(self: Tensor, device: Any = None) -> Tensor:  # noqa: ARG001
        return self

    return _named(pin_memory, original)


def _type(original: Callable[..., Any]) -> Callable[..., Any]:
    def kind(self: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return original(self, dtype, *args, **kwargs) if dtype is not None else original(self)

    return _named(kind, original)


def _nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    return _named(lambda *_args, **_kwargs: None, original)


def _zero(original: Callable[..., Any]) -> Callable[..., Any]:
    return _named(lambda *_args, **_kwargs: 0, original)


_METHODS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "to": _to,
    "cuda": _cuda,
    "pin_memory": _pin_memory,
    "type": _type,
    "record_stream": _nothing,
    "get_device": _zero,
}


def _itself(storage: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Of storages, as `map_location=lambda storage, _: storage.cuda(0)` has it."""
    return storage


class _DeviceKind(type):
    """What `torch.device` is meanwhile: without a GPU the class itself refuses a number. It makes real devices."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _DEVICE)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _DEVICE)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _DEVICE(*(("cuda", *args) if args and type(args[0]) is int else args), **kwargs)

    # Tables by type, as torch has them, find it.
    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _DEVICE

    def __hash__(cls) -> int:
        return hash(_DEVICE)


_Device: Any = _DeviceKind("device", (), {"__doc__": _DEVICE.__doc__, "__module__": "torch"})
_builtins._register_builtin(_Device, _builtins._find_builtin(_DEVICE))


def _generator(original: Any) -> type:
    """A class that makes real generators, and takes them for its own."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, device: Any = "cpu") -> Any:
            return original(device=host(device))

    return Kind("Generator", (), {"__doc__": original.__doc__, "__module__": "torch"})


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Files written on a GPU are loaded here without being asked."""

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or isinstance(map_location, (str, _DEVICE)):
            map_location = host(map_location or "cpu")
        elif isinstance(map_location, dict):
            map_location = {place: host(device) for place, device in map_location.items()}
        return original(f, map_location, *args, **kwargs)

    return _named(load, original)


def _named(call: Callable[..., Any], original: Any) -> Callable[..., Any]:
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        with contextlib.suppress(AttributeError, TypeError):
            setattr(call, name, getattr(original, name))
    return call
