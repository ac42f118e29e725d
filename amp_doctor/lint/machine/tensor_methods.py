"""Methods of tensors: their results, and the events that checks look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.events import Args, OpCall
from amp_doctor.lint.machine import (
    arguments,
    evaluate,
    marks,
    tensors,
)
from amp_doctor.lint.objects import (
    Symbol,
    Tensor,
    Value,
    dtype_of,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State

_SINKS = frozenset(["item", "tolist", "numpy"])


def tensor_method(m: Interpreter, at: int, receiver: Tensor, name: str, args: Args, state: State, used: bool) -> Value:
    """Call a method of a tensor."""
    inputs = [receiver, *tensors.tensors_in([value for _, value in args])]
    if name in ("detach", "detach_"):
        result: Value = replace(receiver, sources=frozenset(), tags=receiver.tags | {"detached"}, at=at)
    elif name in _SINKS:
        result = evaluate.fresh(m, f"call@{at}", name, state)
    elif name in ("size", "dim", "numel", "data_ptr", "get_device", "element_size", "is_contiguous", "storage"):
        result = Symbol(f"{text(receiver)}@{receiver.at}.{name}", name)
    elif name in ("new_zeros", "new_ones", "new_full", "new_tensor", "new_empty"):
        dtype = dtype_of(arguments.argument(args, None, "dtype"))
        open_ended = dtype is None and arguments.argument(args, None, "dtype") is not None
        result = Tensor(
            None if open_ended else dtype or receiver.dtype, receiver.sure, None, frozenset(), frozenset(), at
        )
    elif name in ("cpu", "cuda", "contiguous", "clone", "requires_grad_", "pin_memory", "retain_grad") or name in (
        "split",
        "chunk",
        "unbind",
        "tolist",
    ):
        result = receiver
    elif name in ("type_as",) and len(inputs) > 1:
        result = replace(receiver, dtype=inputs[1].dtype, sure=inputs[1].sure)
    else:
        dtype = dtype_of(arguments.argument(args, None, "dtype"))
        short = name.rstrip("_")
        result = tensors.op_result(short, inputs, state, at, mixed=_unknown_operand(name, args))
        result = marks.mark(result, short, inputs, args[-1][1] if args else None, whole=not args)
        if dtype is not None:
            result = replace(result, dtype=dtype, sure=True)
        if name.endswith("_") and not name.startswith("_"):
            result = replace(
                result, dtype=receiver.dtype, sure=receiver.sure, tags=result.tags | (receiver.tags & {"zeros"})
            )
    m.emit(OpCall(at, f"Tensor.{name}", receiver, args, result, used), state)
    return result


def _unknown_operand(name: str, args: Args) -> bool:
    """`x.add(y)` with y unknown may promote; shape arguments of other methods cannot."""
    return name.rstrip("_") in ("add", "sub", "mul", "div", "where", "lerp", "addcmul", "addcdiv") and any(
        isinstance(value, Symbol) and not marks.is_number(value) for _, value in args
    )
