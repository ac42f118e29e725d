"""A script that casts to half, run in float32 without being edited: what it asks for in half it gets in float32.

Calls that name a half dtype (`model.half()`, `x.to(torch.bfloat16)`, `torch.zeros(2, dtype=torch.float16)`,
`torch.set_default_dtype`, and with them `from_pretrained(dtype=...)`) are given another one. What comes in half from
elsewhere (a checkpoint, numpy) is cast where it enters an outermost module or an optimizer. Whether that was all is
read off the profile (`still_half` in diagnosis/verdict.py); a script that insists on half fails, and is said to.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from amp_doctor.probe.depth import Depth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amp_doctor.probe.patches import Patches

HALF = frozenset({torch.float16, torch.bfloat16})
# Casts that have their dtype in their name.
_NAMED = frozenset({Tensor.half, Tensor.bfloat16})
# The dtype says what bits mean there: nothing is computed in it.
_BITS = frozenset({Tensor.view, torch.frombuffer, torch.promote_types, torch.can_cast})
_TYPES = {"torch.HalfTensor": "torch.FloatTensor", "torch.BFloat16Tensor": "torch.FloatTensor"}


class Widening(TorchFunctionMode):
    """Between `install` and `remove`, in the thread that installs it."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = Depth()
        self._on = False

    def install(self, patches: Patches) -> None:
        """From now on."""
        patches.wrap(torch, "set_default_dtype", _default)
        patches.wrap(Optimizer, "add_param_group", _optimized)
        patches.wrap(nn.Module, "__call__", self._call)
        self._on = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """No more; twice is once."""
        if self._on and _get_current_function_mode() is self:
            self.__exit__(None, None, None)
        self._on = False

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call, with float32 in the place of half."""
        kwargs = kwargs or {}
        if not self._on or func in _BITS:
            return func(*args, **kwargs)
        if func in _NAMED:
            return args[0].float(**kwargs)
        if any(_is_half(value) for value in (*args, *kwargs.values())):
            args = tuple(map(_wide, args))
            kwargs = {name: _wide(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._on and not self._calls:
                _cast(module)
                args, kwargs = tuple(map(_float, args)), {name: _float(value) for name, value in kwargs.items()}
            with self._calls:
                return original(module, *args, **kwargs)

        return call


def _cast(module: nn.Module) -> None:
    if any(one.dtype in HALF for one in chain(module.parameters(), module.buffers())):
        with torch.no_grad():
            module._apply(_float)


def _is_half(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else isinstance(value, torch.dtype) and value in HALF


def _wide(value: Any) -> Any:
    if not _is_half(value):
        return value
    return _TYPES[value] if isinstance(value, str) else torch.float32


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def _default(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_default_dtype(dtype: Any) -> None:
        original(_wide(dtype))

    return set_default_dtype


def _optimized(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_param_group(optimizer: Optimizer, param_group: Any) -> Any:
        result = original(optimizer, param_group)
        _widened(optimizer.param_groups[-1]["params"])
        return result

    return add_param_group


def _widened(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.dtype in HALF:
            # The parameter stays itself, as under `Module.float()`.
            parameter.data = parameter.data.float()
