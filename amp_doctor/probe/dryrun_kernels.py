"""CUDA's autocast and CUDA's half arithmetic for tensors on the CPU, as kernels of the dispatcher.

Two dispatch keys that no CPU tensor has of itself are switched on in the thread of the script. AutocastCUDA gets the
policies of autocast, for CPU tensors: it only casts. Below it, the unused AutocastHPU gets the matrix products: half
inputs are widened, float32 kernels compute, the result is rounded once, which is what a Tensor Core does. Both lie
above autograd, so that the casts are recorded and gradients of half tensors are half; both are on in the backward pass.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.probe.cuda_rules import (
    APPEND_DTYPE,
    BANNED,
    FP32,
    LOWER_PRECISION,
    PROMOTE,
    RECURRENT,
    SET_DTYPE,
    eligible,
    policy,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AUTOCAST = "AutocastCUDA"
HALF = "AutocastHPU"
_LOW = (torch.float16, torch.bfloat16)
# Computed in float32 and rounded once. Composite operators that are one kernel on CUDA stand here as a whole.
ROUNDED = (
    "mm bmm addmm baddbmm addmv addr addbmm mv dot vdot linear conv1d conv2d conv3d conv1d.padding conv2d.padding "
    "conv3d.padding conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution _convolution conv_tbc "
    "scaled_dot_product_attention lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data "
    "rnn_relu.input rnn_relu.data lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell prelu _trilinear"
).split()


def _key(name: str) -> Any:
    key: Any = torch._C._parse_dispatch_key(name)
    return torch._C.DispatchKeySet(key)


def overload(name: str) -> Any:
    """The operator `name` of aten, with its overload after a dot; None where this torch has none."""
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), which or "default", None)


class Casts:
    """Autocast's memory of weights: a leaf is cast once per region, so that its gradients add up in half."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool], tuple[weakref.ref[Tensor], Tensor]] = {}

    def clear(self) -> None:
        """The outermost region has ended."""
        self._known.clear()

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """`value`, tensors in lists included, with everything that autocast may cast in `dtype`."""
        if isinstance(value, Tensor):
            if value.dtype is dtype or not eligible(value.dtype):
                return value
            if (
                value.dtype is torch.float32
                and value.requires_grad
                and value.is_leaf
                and dtype is torch.get_autocast_dtype("cuda")
                and torch.is_autocast_cache_enabled()
                and not value._is_view()
            ):
                return self._weight(value, dtype)
            return value.to(dtype)
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(one, dtype) for one in value)
        return value

    def _weight(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        key = (id(weight), torch.is_grad_enabled())
        known = self._known.get(key)
        if known is not None and known[0]() is weight and known[1].dtype is dtype:
            return known[1]
        result = weight.to(dtype)
        self._known[key] = (weakref.ref(weight), result)
        return result


class Kernels:
    """Registers the kernels while it is installed; the script's thread is the only one they are on for."""

    def __init__(self) -> None:
        self.casts = Casts()
        self._libraries: list[Any] = []

    def install(self) -> None:
        """From now on CPU tensors follow CUDA's rules in this thread."""
        aten = torch.library.Library("aten", "IMPL")
        rest = torch.library.Library("_", "IMPL")
        self._libraries = [aten, rest]
        with warnings.catch_warnings():
            # That a kernel is replaced is what is meant.
            warnings.simplefilter("ignore")
            for name, rule in autocast_rules():
                op = overload(name)
                if op is not None:
                    aten.impl(op, _POLICIES[rule](op, self.casts), AUTOCAST)
            for name in ROUNDED:
                op = overload(name)
                if op is not None:
                    aten.impl(op, _rounded(op), HALF)
            rest.fallback(torch.library.fallthrough_kernel, HALF)
        for key in (HALF, AUTOCAST):
            torch._C._dispatch_tls_set_dispatch_key_included(key, True)
        torch._C._dispatch_tls_set_dispatch_key_excluded(HALF, False)

    def remove(self) -> None:
        """Give the keys back; twice is once."""
        if self._libraries:
            torch._C._dispatch_tls_set_dispatch_key_excluded(HALF, True)
            for key in (HALF, AUTOCAST):
                torch._C._dispatch_tls_set_dispatch_key_included(key, False)
            for library in self._libraries:
                library._destroy()
            self._libraries = []
            self.casts.clear()


def autocast_rules() -> Iterator[tuple[str, str]]:
    """Operators that get a kernel, and their policy; what is banned has CUDA's own, and says its own words."""
    for name, rule in policy().items():
        if rule != BANNED:
            yield name, rule
    for name in RECURRENT:
        yield f"{name}.input", LOWER_PRECISION
        yield f"{name}.data", LOWER_PRECISION


def _lower_precision(op: Any, casts: Casts) -> Callable[..., Any]:
    below = _key(AUTOCAST)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            dtype = torch.get_autocast_dtype("cuda")
            return op(*[casts.cast(one, dtype) for one in args], **kwargs)

    return kernel


def _fp32(op: Any, casts: Casts) -> Callable[..., Any]:
    below = _key(AUTOCAST)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            return op(*[casts.cast(one, torch.float32) for one in args], **kwargs)

    return kernel


def _promote(op: Any, casts: Casts) -> Callable[..., Any]:
    below = _key(AUTOCAST)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            dtype = torch.get_autocast_dtype("cuda")
            for one in _tensors(args):
                if one.is_floating_point():
                    dtype = torch.promote_types(dtype, one.dtype)
            return op(*[casts.cast(one, dtype) for one in args], **kwargs)

    return kernel


def _set_dtype(op: Any, _casts: Casts) -> Callable[..., Any]:
    """The argument `dtype` is set where the call leaves it open."""
    below = _key(AUTOCAST)
    arguments = op._schema.arguments
    place = next(index for index, one in enumerate(arguments) if one.name == "dtype")
    by_name = arguments[place].kwarg_only

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            first = args[0]
            given = kwargs.get("dtype") if by_name or len(args) <= place else args[place]
            if given is None and eligible(first.dtype):
                kwargs["dtype"] = torch.float32
                args = args if by_name else args[:place]
            return op(*args, **kwargs)

    return kernel


def _append_dtype(op: Any, _casts: Casts) -> Callable[..., Any]:
    """The overload with a dtype is called instead."""
    below = _key(AUTOCAST)
    with_dtype = overload({"Scalar": "norm.ScalarOpt_dtype"}.get(op._overloadname, "norm.ScalarOpt_dim_dtype"))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            if not eligible(args[0].dtype):
                return op(*args, **kwargs)
            if op._overloadname == "Scalar":
                power = args[1] if len(args) > 1 else 2
                return with_dtype(args[0], power, dtype=torch.float32)
            keep = args[3] if len(args) > 3 else False
            return with_dtype(args[0], args[1], args[2], keep, dtype=torch.float32)

    return kernel


_POLICIES: dict[str, Callable[[Any, Casts], Callable[..., Any]]] = {
    LOWER_PRECISION: _lower_precision,
    FP32: _fp32,
    PROMOTE: _promote,
    SET_DTYPE: _set_dtype,
    APPEND_DTYPE: _append_dtype,
}


def _rounded(op: Any) -> Callable[..., Any]:
    """Float32 arithmetic between half tensors; what mixes dtypes is left to the real kernel, which refuses it."""
    below = _key(HALF)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            dtype = None
            for one in _tensors(args):
                if one.is_floating_point():
                    if dtype is None:
                        dtype = one.dtype
                    elif one.dtype is not dtype:
                        return op(*args, **kwargs)
            if dtype not in _LOW:
                return op(*args, **kwargs)
            kwargs = {name: _wide(one) for name, one in kwargs.items()}
            return _narrow(op(*[_wide(one) for one in args], **kwargs), dtype)

    return kernel


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _LOW else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_wide, value))
    return value


def _narrow(value: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype is torch.float32 else value
    return tuple(_narrow(one, dtype) for one in value)


def _tensors(values: Any) -> Iterator[Tensor]:
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)
