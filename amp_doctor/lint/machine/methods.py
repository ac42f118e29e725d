"""Methods of modules, gradients and unknown objects: their results, and the events that checks look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.events import Args, OpCall
from amp_doctor.lint.machine import (
    arguments,
    binding,
    escapes,
    evaluate,
    gradients,
    modules,
    roles,
    tensor_methods,
    tensors,
    training,
)
from amp_doctor.lint.machine.ownership import owners_of
from amp_doctor.lint.objects import (
    BF16,
    FP32,
    HALF,
    NONE,
    Class,
    Literal,
    Object,
    Symbol,
    Tensor,
    Value,
    dtype_like,
    dtype_of,
    flat,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.calls import Outcome
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State

_CASTS = {"half": HALF, "float": FP32, "bfloat16": BF16, "double": "float64"}
_SELF = frozenset("cuda cpu train eval requires_grad_ to_empty contiguous share_memory clone detach pin_memory".split())
_INDEXING = frozenset("nonzero bool long argsort logical_not logical_and logical_or".split())
"""Methods that make indices or masks."""
_TENSOR_METHODS = frozenset(
    """
    mean sum view reshape flatten squeeze unsqueeze permute transpose expand repeat clamp clamp_ sqrt
    pow exp log softmax log_softmax argmax argmin max min amax amin norm abs float half sigmoid tanh
    relu square detach clone item masked_fill masked_fill_ matmul bmm gather scatter chunk split unbind
    cumsum std var t numpy tolist backward contiguous cpu cuda new_zeros new_ones size dim
    """.split()
)


def method(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Outcome:
    """A method of a tensor, module, gradient or unknown object."""
    if isinstance(receiver, Class) and name == "apply":
        m.emit(OpCall(at, "Function.apply", receiver, args, NONE, used), state)
    if isinstance(receiver, Object) and receiver.role == "gradient":
        return [(gradients.gradient_method(m, at, receiver, name, args, state), state)]
    if name == "backward":
        return [(gradients.backward_method(m, at, receiver, args, state), state)]
    if name in _CASTS and (isinstance(receiver, Tensor | Symbol) or modules.is_module_value(receiver)):
        return [(training.cast(m, at, receiver, _CASTS[name], name, state, used), state)]
    if name in ("to", "type") and (isinstance(receiver, Tensor | Symbol) or modules.is_module_value(receiver)):
        return [(to(m, at, receiver, name, args, state, used), state)]
    if name in ("parameters", "named_parameters") and isinstance(receiver, Object | Symbol):
        facts: tuple[tuple[str, Value], ...] = (("of", receiver),)
        if name == "named_parameters":
            facts = (("named", Literal(True)), *facts)
        return [
            (Object("params", f"{text(receiver)}.params", facts=tuple(sorted(facts, key=lambda p: p[0])), at=at), state)
        ]
    if name == "zero_grad" and isinstance(receiver, Object | Symbol):
        owners = owners_of(state, receiver) or None
        state.protocol = state.protocol.zeroed(owners)
        return [(NONE, state)]
    if name in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_") and (
        modules.is_module_value(receiver) or (isinstance(receiver, Symbol) and modules.looks_like_module(m, receiver))
    ):
        params = Object("params", f"{text(receiver)}.params", facts=(("of", receiver),), at=at)
        return [(training.clip(m, at, f"Module.{name}", params, arguments.argument(args, 0, "max_norm"), state), state)]
    if isinstance(receiver, Tensor):
        return [(tensor_methods.tensor_method(m, at, receiver, name, args, state, used), state)]
    if modules.is_module_value(receiver) or (isinstance(receiver, Object) and receiver.role == "instance"):
        return module_method(m, at, receiver, name, args, state, used)
    if isinstance(receiver, Object) and receiver.role == "params":
        return [(receiver, state)]
    if isinstance(receiver, Symbol):
        return symbol_method(m, at, receiver, name, args, state, used)
    if isinstance(receiver, Object) and receiver.role == "param" and name == "requires_grad_":
        state.heap[(receiver.oid, "requires_grad")] = arguments.argument(args, 0, "requires_grad") or Literal(True)
        return [(receiver, state)]
    if isinstance(receiver, Object):
        m.emit(OpCall(at, f"{receiver.role}.{name}", receiver, args, NONE, used), state)
        if receiver.role in ("device", "state", "mode", "scheduler", "autocast", "null", "scale"):
            if receiver.role == "scale":
                return [(receiver, state)]
            return [(evaluate.fresh(m, f"call@{at}", name, state), state)]
    escapes.escape(m, name, args, state)
    return [(arguments.opaque(m, at, args, state, name), state)]


def to(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Value:
    """`.to(...)`: a cast when one of its arguments is a dtype; nothing of interest otherwise."""

    dtype = next((found for _, value in args if (found := dtype_of(value))), None)
    if not isinstance(receiver, Tensor):
        moved(m, receiver, args, state)
    if dtype is not None:
        return training.cast(m, at, receiver, dtype, name, state, used)
    likely = next((said[0] for _, value in args if (said := dtype_like(value))[0]), None)
    if likely is not None and isinstance(receiver, Tensor | Symbol):
        cast = training.cast(m, at, receiver, likely, name, state, used)
        return replace(cast, sure=False) if isinstance(cast, Tensor) else cast
    keyword = arguments.argument(args, None, "dtype")
    unknown = keyword is not None or any(isinstance(value, Symbol) and "dtype" in value.name for _, value in args)
    if isinstance(receiver, Tensor):
        model = next((value for _, value in args if isinstance(value, Tensor)), None)
        if model is not None:
            return replace(receiver, dtype=model.dtype, sure=model.sure)
        return replace(receiver, dtype=None, sure=False) if unknown else receiver
    return receiver


def moved(m: Interpreter, module: Value, args: Args, state: State, to: str | None = None) -> None:
    """Remember where a module lives: the device type, when it is written in the source."""

    if not modules.is_module_value(module) and not (
        isinstance(module, Symbol) and modules.looks_like_module(m, module, state)
    ):
        return
    for key, value in args:
        kind = value.fact("type") if isinstance(value, Object) and value.role == "device" else value
        if isinstance(kind, Literal) and isinstance(kind.value, str) and key in (None, "device"):
            to = kind.value.split(":")[0]
        elif key == "device" or (key is None and not dtype_of(value) and not isinstance(kind, Literal)):
            to = to or "?"
    if to is not None:
        state.heap[(text(module), "%device")] = Literal(to)


def module_method(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Outcome:
    """Call a method of a module or instance that is not seen."""
    assert isinstance(receiver, Object)
    m.emit(OpCall(at, f"Module.{name}", receiver, args, NONE, used), state)
    if name in _SELF:
        if name == "requires_grad_":
            first = arguments.argument(args, 0, "requires_grad")
            frozen = isinstance(first, Literal) and first.value is False
            state.heap[(receiver.oid, "%frozen")] = Literal(frozen)
        if name in ("cuda", "cpu"):
            moved(m, receiver, (), state, name)
        return [(receiver, state)]
    if name in (
        "state_dict",
        "load_state_dict",
        "register_buffer",
        "apply",
        "add_module",
        "named_modules",
        "modules",
        "children",
        "named_children",
        "buffers",
    ):
        if name in ("modules", "children", "named_modules", "named_children"):
            return [(Symbol(f"{receiver.oid}.{name}()", "module"), state)]
        return [(Symbol(f"{receiver.oid}.{name}()@{at}", name) if name != "apply" else receiver, state)]
    if apis.DOES_BACKWARD.search(name):
        state.protocol = state.protocol.unknown()
    else:
        escapes.escape(m, name, args, state)
    inputs = tensors.tensors_in([value for _, value in args])
    if modules.is_module_value(receiver) and (inputs or tensors.region_dtype(state)) and receiver.cls is None:
        return [(tensors.module_result(receiver, "", inputs, state, at, receiver.oid, None), state)]
    return [(arguments.opaque(m, at, args, state, name), state)]


def symbol_method(
    m: Interpreter, at: int, receiver: Symbol, name: str, args: Args, state: State, used: bool
) -> Outcome:
    """A method of something unknown."""
    m.emit(OpCall(at, f"Symbol.{name}", receiver, args, NONE, used), state)
    if apis.HARMLESS.search(receiver.name) or apis.HARMLESS.search(name):
        for value in (item for _, part in args for item in flat(part)):
            if isinstance(value, Object) and value.role == "gradient":
                binding.read_gradient(m, value, "read", at, state)
    if name in _SELF:
        if name == "requires_grad_":
            first = arguments.argument(args, 0, "requires_grad")
            state.heap[(receiver.key, "%frozen")] = Literal(isinstance(first, Literal) and first.value is False)
        if name in ("cuda", "cpu"):
            moved(m, receiver, (), state, name)
        return [(receiver, state)]
    if name == "state_dict":
        role = "optimizer" if roles.role_by_use(m, receiver, state) == "optimizer" else "other"
        of = Object("optimizer", receiver.key, origin="used") if role == "optimizer" else receiver
        return [(Object("state", f"{receiver.key}.state", facts=(("of", of),), at=at), state)]
    if name in (
        "items",
        "values",
        "keys",
        "get",
        "lower",
        "upper",
        "strip",
        "startswith",
        "endswith",
        "is_available",
        "split",
    ):
        label = ",".join(text(value) for _, value in args)
        last = next((str(v.value) for _, v in args if isinstance(v, Literal) and isinstance(v.value, str)), name)
        return [(Symbol(f"{receiver.key}.{name}({label})", last), state)]
    inputs = tensors.tensors_in([value for _, value in args])
    if name in _INDEXING:
        return [(Tensor("other", at=at), state)]
    if name == "type_as" and len(inputs) == 1:
        return [(Tensor(inputs[0].dtype, inputs[0].sure, at=at), state)]
    if name in _TENSOR_METHODS and not inputs and not modules.looks_like_module(m, receiver):
        if name in ("item", "numpy", "tolist"):
            return [(evaluate.fresh(m, f"call@{at}", name, state), state)]
        if name in ("size", "dim"):
            return [(Symbol(f"{receiver.key}.{name}()", name), state)]
        guess = Tensor(None, False, None, frozenset(), frozenset(), at)
        return [(tensors.op_result(name.rstrip("_"), [guess], state, at), state)]
    if name in _TENSOR_METHODS and inputs and name in ("matmul", "bmm", "mm", "masked_fill", "add", "mul", "where"):
        return [(tensors.op_result(name, [Tensor(None, False), *inputs], state, at), state)]
    if apis.HARMLESS.search(receiver.name) or apis.HARMLESS.search(name):
        return [(evaluate.fresh(m, f"call@{at}", name, state), state)]
    if apis.DOES_BACKWARD.search(name) and not _scheduler(receiver.name):
        state.protocol = state.protocol.unknown()
    escapes.escape(m, name, args, state)
    if inputs:
        result = tensors.module_result(
            Symbol(f"{receiver.key}.{name}", name), "", inputs, state, at, receiver.key, None
        )
        return [(result, state)]
    return [(arguments.opaque(m, at, args, state, name), state)]


def _scheduler(name: str) -> bool:
    return "sched" in name.lower() or name.lower() in (
        "warmup",
        "lr",
        "annealer",
        "ema",
        "model_ema",
        "progress",
        "env",
        "pbar",
        "bar",
    )
