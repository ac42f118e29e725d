"""Tensor functions and methods: their results, and the events that checks look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.events import Args, OpCall
from amp_doctor.lint.machine import arguments, binding, evaluate, gradients, marks, modules, roles, tensors, training
from amp_doctor.lint.objects import (
    BF16,
    FP32,
    HALF,
    NONE,
    Class,
    Code,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
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

_INNOCENT = (
    "pickle.",
    "json.",
    "numpy.",
    "logging.",
    "math.",
    "os.",
    "sys.",
    "time.",
    "random.",
    "wandb.",
    "tqdm.",
    "typing.",
    "warnings.",
)
"""Libraries that never touch a gradient."""
_CASTS = {"half": HALF, "float": FP32, "bfloat16": BF16, "double": "float64"}
_SELF = frozenset(
    [
        "cuda",
        "cpu",
        "train",
        "eval",
        "requires_grad_",
        "to_empty",
        "contiguous",
        "share_memory",
        "clone",
        "detach",
        "pin_memory",
    ]
)
_FACTORIES = frozenset(
    [
        "zeros",
        "ones",
        "empty",
        "eye",
        "full",
        "rand",
        "randn",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
        "tensor",
        "arange",
        "linspace",
        "as_tensor",
    ]
)
_LOADERS = frozenset(["from_pretrained", "from_config", "from_single_file"])
"""Makers of models of other libraries, which take the dtype of the weights."""
_INDEXING = frozenset("nonzero bool long argsort logical_not logical_and logical_or".split())
"""Methods that make indices or masks."""
_SINKS = frozenset(["item", "tolist", "numpy"])
_TENSOR_METHODS = frozenset(
    [
        "mean",
        "sum",
        "view",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "permute",
        "transpose",
        "expand",
        "repeat",
        "clamp",
        "clamp_",
        "sqrt",
        "pow",
        "exp",
        "log",
        "softmax",
        "log_softmax",
        "argmax",
        "argmin",
        "max",
        "min",
        "amax",
        "amin",
        "norm",
        "abs",
        "float",
        "half",
        "sigmoid",
        "tanh",
        "relu",
        "square",
        "detach",
        "clone",
        "item",
        "masked_fill",
        "masked_fill_",
        "matmul",
        "bmm",
        "gather",
        "scatter",
        "chunk",
        "split",
        "unbind",
        "cumsum",
        "std",
        "var",
        "t",
        "numpy",
        "tolist",
        "backward",
        "contiguous",
        "cpu",
        "cuda",
        "new_zeros",
        "new_ones",
        "size",
        "dim",
    ]
)


def method(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Outcome:
    """A method of a tensor, module, gradient or unknown object."""
    from amp_doctor.lint.machine.escapes import escape

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
        from amp_doctor.lint.machine.protocol import owners_of

        owners = owners_of(state, receiver) or None
        state.protocol = state.protocol.zeroed(owners)
        return [(NONE, state)]
    if name in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_") and (
        modules.is_module_value(receiver) or (isinstance(receiver, Symbol) and modules._looks_like_module(m, receiver))
    ):
        params = Object("params", f"{text(receiver)}.params", facts=(("of", receiver),), at=at)
        return [(training.clip(m, at, f"Module.{name}", params, arguments.argument(args, 0, "max_norm"), state), state)]
    if isinstance(receiver, Tensor):
        return [(tensor_method(m, at, receiver, name, args, state, used), state)]
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
    escape(m, name, args, state)
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
        isinstance(module, Symbol) and modules._looks_like_module(m, module, state)
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


def tensor_method(m: Interpreter, at: int, receiver: Tensor, name: str, args: Args, state: State, used: bool) -> Value:
    inputs = [receiver, *tensors.tensors_in([value for _, value in args])]
    if name in ("detach", "detach_"):
        result: Value = replace(receiver, sources=frozenset(), tags=receiver.tags | {"detached"}, at=at)
    elif name in _SINKS:
        result = evaluate.fresh(m, f"call@{at}", name, state)
    elif name in ("size", "dim", "numel", "data_ptr", "get_device", "element_size", "is_contiguous", "storage"):
        result = Symbol(f"{text(receiver)}@{receiver.at}.{name}", name)
    elif name in ("new_zeros", "new_ones", "new_full", "new_tensor", "new_empty"):
        dtype = dtype_of(_dtype_argument(args))
        open_ended = dtype is None and _dtype_argument(args) is not None
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
        dtype = dtype_of(_dtype_argument(args))
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


def _dtype_argument(args: Args) -> Value | None:
    return next((value for key, value in args if key == "dtype"), None)


def _unknown_operand(name: str, args: Args) -> bool:
    """`x.add(y)` with y unknown may promote; shape arguments of other methods cannot."""
    return name.rstrip("_") in ("add", "sub", "mul", "div", "where", "lerp", "addcmul", "addcdiv") and any(
        isinstance(value, Symbol) and not marks.is_number(value) for _, value in args
    )


def module_method(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Outcome:
    from amp_doctor.lint.machine.escapes import escape

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
        escape(m, name, args, state)
    inputs = tensors.tensors_in([value for _, value in args])
    if modules.is_module_value(receiver) and (inputs or tensors.region_dtype(state)) and receiver.cls is None:
        return [(tensors.module_result(receiver, "", inputs, state, at, receiver.oid, None), state)]
    return [(arguments.opaque(m, at, args, state, name), state)]


def symbol_method(
    m: Interpreter, at: int, receiver: Symbol, name: str, args: Args, state: State, used: bool
) -> Outcome:
    """A method of something unknown."""
    from amp_doctor.lint.machine.escapes import escape

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
    if name in _TENSOR_METHODS and not inputs and not modules._looks_like_module(m, receiver):
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
    escape(m, name, args, state)
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


def function(m: Interpreter, at: int, api: str, args: Args, state: State, used: bool) -> Outcome:
    """A library function that is no constructor of a tracked kind."""
    from amp_doctor.lint.machine.calls import call_value
    from amp_doctor.lint.machine.escapes import escape

    plain = arguments.positional(args)
    if api in ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential") and plain:
        rest = tuple((None, value) for value in plain[1:])
        return call_value(m, at, plain[0], rest, state)
    for value in (item for _, part in args for item in flat(part)):
        if isinstance(value, Object) and value.role == "gradient":
            how = "linear" if "all_reduce" in api or "reduce" in api else "read"
            binding.read_gradient(m, value, how, at, state)
    short = apis.short(api)
    inputs = tensors.tensors_in([value for _, value in args])
    dtype = dtype_of(_dtype_argument(args))
    result: Value
    if api == "torch.autograd.grad":
        result = gradients.gradient_result(m, at, args, state)
    elif api == "torch.autograd.backward":
        first = plain[0] if plain else NONE
        tensor = next((item for item in flat(first) if isinstance(item, Tensor)), first)
        result = training.backward(m, at, tensor, (), state)
    elif short in _FACTORIES:
        like = inputs[0].dtype if short.endswith("_like") and inputs else None
        sure = inputs[0].sure if short.endswith("_like") and inputs else True
        told = short in ("zeros", "ones", "empty", "eye", "full", "rand", "randn", "tensor")
        if short.endswith("_like") or dtype or told:
            made, tags = made_by(m, short, args, dtype, like)
            result = Tensor(made, made is not None and (sure or dtype is not None), None, frozenset(), tags, at)
            wants = arguments.argument(args, None, "requires_grad")
            if short == "tensor" and isinstance(wants, Literal) and wants.value is True:
                result = result.tagged("leaf", f"leaf@{at}")
        else:
            result = Tensor(None, False, None, frozenset(), frozenset(), at)
    elif api in ("torch.save", "torch.load") or api.startswith(
        ("torch.distributed.", "torch.cuda.", "torch.backends.", "torch.jit.", "torch.set_", "torch.get_", "torch.is_")
    ):
        m.emit(OpCall(at, api, None, args, NONE, used), state)
        if api.startswith(
            (
                "torch.cuda.is_",
                "torch.is_",
                "torch.distributed.is_",
                "torch.distributed.get_rank",
                "torch.distributed.get_world",
            )
        ) or api.endswith("is_available"):
            return [(Symbol(f"{api}({','.join(text(value) for value in plain)})", short), state)]
        return [(evaluate.fresh(m, f"call@{at}", short, state), state)]
    elif api.startswith("torch.nn.utils.") and "grad_norm" in api:
        return [(training.clip(m, at, api, plain[0] if plain else None, None, state), state)]
    elif api.startswith("torch.nn.utils.") and plain:
        result = plain[0]
    elif api.startswith("torch"):
        if api in {"torch.finfo", "torch.iinfo"}:
            first = plain[0] if plain else NONE
            return [(Object("finfo", f"finfo({text(first)})", facts=(("dtype", first),), at=at), state)]
        if short in ("cat", "stack", "concat", "hstack", "vstack") and inputs:
            result = tensors.op_result("cat", inputs, state, at)
        elif inputs or short in apis.LOWER_PRECISION or short in apis.FLOAT32_OPS:
            operands = inputs or [Tensor(None, False)]
            tail = plain[1:] if short == "where" else plain
            mixed = short in ("where", "add", "sub", "mul", "div") and any(
                isinstance(v, Symbol) and not marks.is_number(v) for v in tail
            )
            result = tensors.op_result(short, operands, state, at, mixed=mixed)
            result = marks.mark(result, short, operands, plain[-1] if len(plain) > 1 else None, whole=len(args) == 1)
            if dtype is not None:
                result = replace(result, dtype=dtype, sure=True)
            if arguments.argument(args, None, "reduction") == Literal("none"):
                result = result.tagged("unreduced")
        elif any(isinstance(value, Symbol) for value in plain) and short.islower():
            result = tensors.op_result(short, [Tensor(None, False)], state, at)
        else:
            result = evaluate.fresh(m, f"call@{at}", short, state)
    elif api.startswith("math."):
        m.emit(OpCall(at, api, None, args, NONE, used), state)
        return [(Symbol(f"{api}({','.join(text(value) for value in plain)})", short), state)]
    else:
        if not api.startswith(_INNOCENT):
            escape(m, short, args, state)
        last = api.rpartition(".")[2]
        if isinstance(plain[0] if plain else None, Items | Table | Object | Code) and last in (
            "tqdm",
            "trange",
            "track",
            "progress_bar",
        ):
            result = plain[0]
        else:
            result = arguments.opaque(m, at, args, state, last)
            loaded = dtype or dtype_of(arguments.argument(args, None, "torch_dtype"))
            if last in _LOADERS and loaded == HALF and isinstance(result, Symbol):
                modules.set_precision(result, loaded, at, state)
    m.emit(OpCall(at, api, None, args, result, used), state)
    return [(result, state)]


def made_by(
    m: Interpreter, short: str, args: Args, dtype: str | None, like: str | None
) -> tuple[str | None, frozenset[str]]:
    """The dtype and the marks of a factory's result; unknown when a dtype is given that is not known."""
    tags: frozenset[str]
    if short.endswith("_like"):
        made, tags = marks.filled(short, args, dtype or like)
    else:
        made, tags = marks.filled(short, args, dtype)
    given = any(key in ("dtype", "**") for key, _ in args)
    unknown = dtype is None and (given or "set_default_dtype" in m.module.words)
    return (None if unknown else made), tags
