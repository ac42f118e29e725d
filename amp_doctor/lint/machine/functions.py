"""Library functions that make no tracked object: their results, and the events that checks look at."""

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
    marks,
    modules,
    tensors,
    training,
)
from amp_doctor.lint.objects import (
    HALF,
    NONE,
    Code,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
    Tensor,
    Value,
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
_FACTORIES = frozenset(
    """
    zeros ones empty eye full rand randn zeros_like ones_like empty_like full_like rand_like randn_like
    tensor arange linspace as_tensor
    """.split()
)
_LOADERS = frozenset(["from_pretrained", "from_config", "from_single_file"])
"""Makers of models of other libraries, which take the dtype of the weights."""


def function(m: Interpreter, at: int, api: str, args: Args, state: State, used: bool) -> Outcome:
    """A library function that is no constructor of a tracked kind."""
    from amp_doctor.lint.machine.calls import call_value

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
    result: Value
    if api == "torch.autograd.grad":
        result = gradients.gradient_result(at, args)
    elif api == "torch.autograd.backward":
        first = plain[0] if plain else NONE
        tensor = next((item for item in flat(first) if isinstance(item, Tensor)), first)
        result = training.backward(m, at, tensor, state)
    elif short in _FACTORIES:
        result = _factory(m, at, short, args, inputs)
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
    elif api in {"torch.finfo", "torch.iinfo"}:
        first = plain[0] if plain else NONE
        return [(Object("finfo", f"finfo({text(first)})", facts=(("dtype", first),), at=at), state)]
    elif api.startswith("torch"):
        result = _operation(m, at, short, args, inputs, state)
    elif api.startswith("math."):
        m.emit(OpCall(at, api, None, args, NONE, used), state)
        return [(Symbol(f"{api}({','.join(text(value) for value in plain)})", short), state)]
    else:
        result = _foreign(m, at, api, args, state)
    m.emit(OpCall(at, api, None, args, result, used), state)
    return [(result, state)]


def _factory(m: Interpreter, at: int, short: str, args: Args, inputs: list[Tensor]) -> Tensor:
    """`torch.zeros` and the like: a tensor of the dtype asked for, or of the tensor it is to be like."""
    dtype = dtype_of(arguments.argument(args, None, "dtype"))
    like = inputs[0].dtype if short.endswith("_like") and inputs else None
    sure = inputs[0].sure if short.endswith("_like") and inputs else True
    told = short in ("zeros", "ones", "empty", "eye", "full", "rand", "randn", "tensor")
    if short.endswith("_like") or dtype or told:
        made, tags = _made_by(m, short, args, dtype, like)
        result = Tensor(made, made is not None and (sure or dtype is not None), None, frozenset(), tags, at)
        wants = arguments.argument(args, None, "requires_grad")
        if short == "tensor" and isinstance(wants, Literal) and wants.value is True:
            return result.tagged("leaf", f"leaf@{at}")
        return result
    return Tensor(None, False, None, frozenset(), frozenset(), at)


def _operation(m: Interpreter, at: int, short: str, args: Args, inputs: list[Tensor], state: State) -> Value:
    """Any other function of torch: an operation on tensors, when there are any."""
    plain = arguments.positional(args)
    dtype = dtype_of(arguments.argument(args, None, "dtype"))
    result: Value
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
    return result


def _foreign(m: Interpreter, at: int, api: str, args: Args, state: State) -> Value:
    """A function of another library."""
    plain = arguments.positional(args)
    short = apis.short(api)
    if not api.startswith(_INNOCENT):
        escapes.escape(m, short, args, state)
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
        given = arguments.argument(args, None, "dtype"), arguments.argument(args, None, "torch_dtype")
        loaded = dtype_of(given[0]) or dtype_of(given[1])
        if last in _LOADERS and loaded == HALF and isinstance(result, Symbol):
            modules.set_precision(result, loaded, at, state)
    return result


def _made_by(
    m: Interpreter, short: str, args: Args, dtype: str | None, like: str | None
) -> tuple[str | None, frozenset[str]]:
    """The dtype and the marks of a factory's result; unknown when a dtype is given that is not known."""
    made, tags = marks.filled(short, args, dtype or like)
    given = any(key in ("dtype", "**") for key, _ in args)
    unknown = dtype is None and (given or "set_default_dtype" in m.module.words)
    return (None if unknown else made), tags
