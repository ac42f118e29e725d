"""A call in reduced precision, made on a CPU as a GPU would make it.

What only the CPU refuses is computed in FP32 and rounded once; what a GPU refuses as well raises here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.numerics.formats import FP16
from amp_doctor.probe.dtypes import LOW, in_dtype, narrowed, widened
from amp_doctor.probe.graph_calls import invoke, name_of
from amp_doctor.probe.nested import tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from amp_doctor.probe.precisions import Precision

# They make tensors of nothing.
CREATED = frozenset("zeros ones full rand randn arange linspace logspace eye empty tensor scalar_tensor".split())
# What they draw in half on a CPU are other numbers than in FP32 in older releases of torch (2.4, 2.6).
DRAWN = frozenset("rand randn rand_like randn_like".split())
# What the CPU has no kernel for and a GPU has.
_ONLY_ON_CPU = ("not implemented for", "mkldnn", "could not create a primitive")
# And what has none for half on either (torch's own table of dtypes, 2.13): those of these families, and these.
_FAMILIES = ("linalg_", "special_")
_NO_HALF = frozenset(
    "cholesky cholesky_inverse cholesky_solve ctc_loss det geqrf inverse logdet lu lu_solve lu_unpack ormqr pinverse "
    "polar qr slogdet svd triangular_solve".split()
)
_MIXED = ("dtype", "should be the same", "must have the same", "expected scalar type")
# A constant beyond the range of half. They write it into half memory; on a GPU others compute with it in FP32.
_CONSTANT = "without overflow"
WRITE = frozenset(
    "fill_ full full_like new_full masked_fill masked_fill_ index_fill index_fill_ scatter scatter_ pad "
    "linspace".split()
)
# Fourier transforms: their names, and those that go from a spectrum to a signal of real numbers.
_FOURIER = "fft_"
_HALVES = (*LOW, torch.complex32)
_TO_REAL = ("irfft", "hfft")


def half_call(node: fx.Node, args: Any, kwargs: Any, precision: Precision) -> Any:
    """The result; raises what the reduced precision raises."""
    name = name_of(node)
    if name.startswith(_FOURIER) and any(one.dtype in _HALVES for one in tensors((args, kwargs))):
        return _transformed(node, name.removeprefix(_FOURIER), args, kwargs)
    try:
        return _computable(invoke(node, args, kwargs))
    except (RuntimeError, NotImplementedError) as error:
        words = str(error)
        if _only_on_cpu(name, words):
            return in_dtype(invoke(node, *widened((args, kwargs), dtypes=False)), precision.low)
        if (precision.weights is not None or _asks_for_dtype(node)) and any(one in words for one in _MIXED):
            # A model of half weights has a cast here, which in the recorded FP32 step was none.
            return invoke(node, *narrowed((args, kwargs), precision.low))
        raise


def mixes(values: Any) -> bool:
    """Whether half tensors and FP32 ones are among the arguments of a call."""
    dtypes = {one.dtype for one in tensors((values,))}
    return torch.float32 in dtypes and not dtypes.isdisjoint(LOW)


def beyond(values: Iterable[object]) -> float:
    """The largest finite constant among arguments that FP16 cannot hold; 0 when there is none."""
    sizes = (abs(float(one)) for one in values if isinstance(one, (int, float)) and not isinstance(one, bool))
    return max((one for one in sizes if FP16.overflow_threshold <= one < float("inf")), default=0.0)


def _only_on_cpu(name: str, words: str) -> bool:
    if _CONSTANT in words:
        return name not in WRITE
    return any(one in words for one in _ONLY_ON_CPU) and name not in _NO_HALF and not name.startswith(_FAMILIES)


def _asks_for_dtype(node: fx.Node) -> bool:
    """Whether an argument was made in a dtype that the call names: it may be that of another tensor, `x.dtype`."""
    return any(name_of(one) in CREATED and one.kwargs.get("dtype") is not None for one in node.all_input_nodes)


def _transformed(node: fx.Node, name: str, args: Any, kwargs: Any) -> Any:
    """cuFFT in half takes lengths that are powers of two, and no bfloat16."""
    if any(one.dtype is torch.bfloat16 for one in tensors((args, kwargs))):
        raise RuntimeError("Unsupported dtype BFloat16")
    lengths = _lengths(name, *args, **kwargs)
    if any(one & (one - 1) for one in lengths):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of {lengths}"
        )
    result = invoke(node, *widened((args, kwargs), dtypes=False))
    return _computable(result.to(torch.complex32 if result.is_complex() else torch.float16))


def _computable(result: Any) -> Any:
    """The CPU has hardly an operator for half complex numbers, least of all in a backward pass."""
    return widened(result) if isinstance(result, Tensor) and result.dtype is torch.complex32 else result


def _lengths(name: str, signal: Tensor, n: Any = None, dim: Any = None, *_: Any, **named: Any) -> list[int]:
    """The lengths of the signal along the dimensions that are transformed; `s` are those of several."""
    given = named.get("s", n)
    given = (given,) if isinstance(given, int) else given
    dims = (dim,) if isinstance(dim, int) else dim
    if dims is None:
        # All of an n-dimensional one, the last two, or the last.
        several = signal.dim() if name.endswith("n") else 2 if name.endswith("2") else 1
        dims = range(-(len(given) if given is not None else several), 0)
    lengths = [signal.size(one) for one in dims]
    if given is None and name.startswith(_TO_REAL):
        lengths[-1] = 2 * (lengths[-1] - 1)
    for place, length in enumerate(given or ()):
        lengths[place] = lengths[place] if length in (None, -1) else int(length)
    return lengths
