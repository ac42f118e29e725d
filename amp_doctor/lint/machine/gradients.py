"""Gradients as objects: `x.backward(...)`, methods of `p.grad`, the result of `torch.autograd.grad`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint.machine import arguments, binding, tensors, training
from amp_doctor.lint.objects import (
    FP32,
    NONE,
    Items,
    Object,
    Symbol,
    Tensor,
    Value,
    flat,
)

if TYPE_CHECKING:
    from amp_doctor.lint.events import Args
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def backward_method(m: Interpreter, at: int, receiver: Value, args: Args, state: State) -> Value:
    """`x.backward(...)`: of a loss, unless something is handed over and x is not known to be a tensor."""

    plain = arguments.positional(args)
    if isinstance(receiver, Tensor) or (isinstance(receiver, Symbol) and not plain):
        return training.backward(m, at, receiver, state)
    if isinstance(receiver, Symbol | Object) and plain:
        m.facts["framework"] = True
        state.protocol = state.protocol.unknown()
    return NONE


def gradient_method(m: Interpreter, at: int, gradient: Object, name: str, args: Args, state: State) -> Value:
    """A method of a gradient: whether it reads, drops, rescales or changes it."""
    scale = any(isinstance(value, Object) and value.role == "scale" for _, value in args)
    if name in ("zero_", "detach_", "requires_grad_"):
        how = "drop"
    elif name in ("div_", "mul_"):
        how = "rescale" if scale else "linear"
    elif name in (
        "data",
        "detach",
        "clone",
        "float",
        "to",
        "cpu",
        "view",
        "flatten",
        "coalesce",
        "contiguous",
        "record_stream",
        "size",
        "numel",
        "dim",
    ):
        return gradient
    elif name.endswith("_") and not name.endswith("__"):
        how = "write"
    else:
        how = "read"
    binding.read_gradient(m, gradient, how, at, state)
    return Tensor(FP32, True, None, frozenset(), frozenset({"norm"}), at)


def gradient_result(at: int, args: Args) -> Value:
    """torch.autograd.grad: gradients of (possibly scaled) outputs."""

    outputs = arguments.argument(args, 0, "outputs")
    scaled = next((item.scaled for item in flat(outputs) if isinstance(item, Tensor) and item.scaled), None)
    tags = frozenset({"gradient"} | ({"gradient-of-scaled"} if scaled else set()))
    base = tensors.merged(tensors.tensors_in([outputs] if outputs is not None else []))
    gradient = Tensor(None, False, scaled, base.sources, tags | base.tags, at)
    return Items("tuple", (gradient,), True)
