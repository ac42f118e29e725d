"""The policies of CUDA's autocast as kernels for CPU tensors: they cast, and call what lies below autocast."""

from __future__ import annotations

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
from amp_doctor.probe.nested import tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # From an operator and the memory of weights to the kernel.
    Policy = Callable[[Any, "Casts"], Callable[..., Any]]

AUTOCAST = "AutocastCUDA"


def key(name: str) -> Any:
    """The set of one dispatch key."""
    one: Any = torch._C._parse_dispatch_key(name)
    return torch._C.DispatchKeySet(one)


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


def autocast_rules() -> Iterator[tuple[str, str]]:
    """Operators that get a kernel, and their policy; what is banned has CUDA's own, and says its own words."""
    for name, rule in policy().items():
        if rule != BANNED:
            yield name, rule
    for name in RECURRENT:
        yield f"{name}.input", LOWER_PRECISION
        yield f"{name}.data", LOWER_PRECISION


def _inputs_in(dtype_of: Callable[[tuple[Any, ...]], torch.dtype]) -> Policy:
    """All inputs are cast to one dtype, which may depend on them."""

    def make(op: Any, casts: Casts) -> Callable[..., Any]:
        below = key(AUTOCAST)

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(below):
                dtype = dtype_of(args)
                return op(*[casts.cast(one, dtype) for one in args], **kwargs)

        return kernel

    return make


def _widest(args: tuple[Any, ...]) -> torch.dtype:
    dtype = torch.get_autocast_dtype("cuda")
    for one in tensors(args):
        if one.is_floating_point():
            dtype = torch.promote_types(dtype, one.dtype)
    return dtype


def _set_dtype(op: Any, _casts: Casts) -> Callable[..., Any]:
    """The argument `dtype` is set where the call leaves it open."""
    below = key(AUTOCAST)
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
    below = key(AUTOCAST)
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


POLICIES: dict[str, Policy] = {
    LOWER_PRECISION: _inputs_in(lambda _: torch.get_autocast_dtype("cuda")),
    FP32: _inputs_in(lambda _: torch.float32),
    PROMOTE: _inputs_in(_widest),
    SET_DTYPE: _set_dtype,
    APPEND_DTYPE: _append_dtype,
}
