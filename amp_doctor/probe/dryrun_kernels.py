"""CUDA's autocast and CUDA's half arithmetic for tensors on the CPU, as kernels of the dispatcher.

Two dispatch keys that no CPU tensor has of itself are switched on in the thread of the script. AutocastCUDA gets the
policies of autocast, for CPU tensors: it only casts. Below it, the unused AutocastHPU gets the matrix products: half
inputs are widened, float32 kernels compute, the result is rounded once, which is what a Tensor Core does. Both lie
above autograd, so that the casts are recorded and gradients of half tensors are half; both are on in the backward pass.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.probe.dryrun_autocast import AUTOCAST, POLICIES, Casts, autocast_rules, key, overload
from amp_doctor.probe.dryrun_fused import FUSED
from amp_doctor.probe.dtypes import LOW, narrowed
from amp_doctor.probe.nested import mapped, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HALF = "AutocastHPU"
# Computed in float32 and rounded once. Composite operators that are one kernel on CUDA stand here as a whole.
ROUNDED = (
    "mm bmm addmm baddbmm addmv addr addbmm mv dot vdot linear conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution _convolution conv_tbc "
    "scaled_dot_product_attention lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data "
    "rnn_relu.input rnn_relu.data lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell prelu _trilinear "
    # Half kernels of the CPU that multiply or weigh in half.
    "prod prod.dim_int grid_sampler_2d grid_sampler_3d "
    # Half on CUDA, and without a half kernel on the CPU (torch's own table of dtypes, 2.13).
    "avg_pool3d multi_margin_loss multilabel_margin_loss polygamma round.decimals rrelu _upsample_bilinear2d_aa "
    # Or no half kernel in torch 2.4, forward or backward (its table).
    "mse_loss smooth_l1_loss isin.Tensor_Tensor isin.Tensor_Scalar isin.Scalar_Tensor trace adaptive_max_pool3d "
    "max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d"
).split()
# The same into a tensor that is given, where autocast casts nothing: in place and with `out=`, by the plain operator.
IN_PLACE = {f"{name}_": name for name in "addmm baddbmm addmv addr addbmm".split()}
OUT = {f"{name}.out": name for name in "mm bmm addmm baddbmm addmv addr addbmm mv dot vdot linear".split()}
# The other way round: CUDA has no half kernel of that name.
REFUSED = {"igamma": "igamma_cuda", "igammac": "igammac_cuda", "angle": "angle_cuda", "histc": "histc"}
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16"}


class _Innermost(Casts):
    """The casts of the kernels installed last: a replay may stand inside a dry run."""

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        return _installed[-1].casts.cast(value, dtype)


# The kernels are registered once, however often they are installed.
_installed: list[Kernels] = []
_libraries: list[Any] = []


class Kernels:
    """Registers the kernels while it is installed; the script's thread is the only one they are on for."""

    def __init__(self) -> None:
        self.casts = Casts()
        self._thread = 0

    def install(self) -> None:
        """From now on CPU tensors follow CUDA's rules in this thread."""
        self._thread = threading.get_ident()
        _installed.append(self)
        if not _libraries:
            _register()
        for layer in (HALF, AUTOCAST):
            torch._C._dispatch_tls_set_dispatch_key_included(layer, True)
        torch._C._dispatch_tls_set_dispatch_key_excluded(HALF, False)

    def remove(self) -> None:
        """Give the keys back; twice is once. Another thread cannot, and the kernels stay for the one that has them."""
        if self not in _installed or threading.get_ident() != self._thread:
            return
        _installed.remove(self)
        self.casts.clear()
        if not _installed:
            torch._C._dispatch_tls_set_dispatch_key_excluded(HALF, True)
            for layer in (HALF, AUTOCAST):
                torch._C._dispatch_tls_set_dispatch_key_included(layer, False)
            while _libraries:
                _libraries.pop()._destroy()


def _register() -> None:
    aten = torch.library.Library("aten", "IMPL")
    rest: Any = torch.library.Library("_", "IMPL")
    _libraries.extend([aten, rest])
    casts = _Innermost()
    with warnings.catch_warnings():
        # That a kernel is replaced is what is meant.
        warnings.simplefilter("ignore")
        rules = dict(autocast_rules())
        for name, op in _known(rules):
            aten.impl(op, POLICIES[rules[name]](op, casts), AUTOCAST)
        for _, op in _known(ROUNDED):
            aten.impl(op, _rounded(op), HALF)
        for name, op in _known(IN_PLACE):
            aten.impl(op, _in_place(op, overload(IN_PLACE[name])), HALF)
        for name, op in _known(OUT):
            aten.impl(op, _into(op, overload(OUT[name])), HALF)
        for name, op in _known(FUSED):
            aten.impl(op, _below(FUSED[name](op)), HALF)
        for name, op in _known(REFUSED):
            aten.impl(op, _refused(op, REFUSED[name]), HALF)
        # What Library.fallback calls, which releases before 2.6 do not have.
        rest.m.fallback_fallthrough(HALF)


def _known(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Those operators that this torch has."""
    for name in names:
        op = overload(name)
        if op is not None:
            yield name, op


def _rounded(op: Any) -> Callable[..., Any]:
    """Float32 arithmetic between half tensors; what mixes dtypes is left to the real kernel, which refuses it."""
    below = key(HALF)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            dtype = None
            for one in tensors(args):
                if one.is_floating_point():
                    if dtype is None:
                        dtype = one.dtype
                    elif one.dtype is not dtype:
                        return op(*args, **kwargs)
            if dtype is None or dtype not in LOW or kwargs.get("dtype") is not None:
                return op(*args, **kwargs)
            kwargs = {name: _wide(one) for name, one in kwargs.items()}
            return narrowed(op(*[_wide(one) for one in args], **kwargs), dtype)

    return kernel


def _in_place(op: Any, plain: Any) -> Callable[..., Any]:
    both = key(AUTOCAST) | key(HALF)

    def kernel(target: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(both):
            if not _all_low(target, *args):
                return op(target, *args, **kwargs)
            return target.copy_(plain(_wide(target), *map(_wide, args), **kwargs))

    return kernel


def _into(op: Any, plain: Any) -> Callable[..., Any]:
    both = key(AUTOCAST) | key(HALF)

    def kernel(*args: Any, out: Tensor) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(both):
            recorded = torch.is_grad_enabled() and any(one.requires_grad for one in tensors(args))
            if recorded or not _all_low(out, *args):
                return op(*args, out=out)
            result = plain(*map(_wide, args))
            # What does not fit is resized, with a warning unless it is empty.
            return out.copy_(result) if out.shape == result.shape else op(*args, out=out)

    return kernel


def _all_low(*args: Any) -> bool:
    """Whether these are half tensors of one dtype."""
    dtypes = {one.dtype for one in tensors(args)}
    return len(dtypes) == 1 and dtypes <= set(LOW)


def _below(call: Callable[..., Any]) -> Callable[..., Any]:
    below = key(HALF)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            return call(*args, **kwargs)

    return kernel


def _refused(op: Any, name: str) -> Callable[..., Any]:
    """CUDA's own words about a dtype that a kernel does not have."""
    below = key(HALF)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        for one in tensors(args):
            if one.dtype in LOW:
                raise NotImplementedError(f"\"{name}\" not implemented for '{_NAMES[one.dtype]}'")
        with torch._C._ExcludeDispatchKeyGuard(below):
            return op(*args, **kwargs)

    return kernel


def _wide(value: Any) -> Any:
    return mapped(value, lambda one: one.float() if isinstance(one, Tensor) and one.dtype in LOW else one)
