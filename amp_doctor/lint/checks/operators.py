"""AMP5: numbers that float16 cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Confidence
from amp_doctor.lint import apis
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import Cast, Forward, OpCall, Operation, Store
from amp_doctor.lint.machine import modules
from amp_doctor.lint.machine.marks import huge, lost, number
from amp_doctor.lint.objects import HALF, Items, Literal, Object, Tensor, Value

if TYPE_CHECKING:
    from collections.abc import Iterator


def half(value: Value | None) -> bool:
    return isinstance(value, Tensor) and value.dtype == HALF


def sureness(at: Moment[Any], *values: Value | None) -> Confidence:
    """How sure it is that these tensors are float16: seen, the output of an unknown model, or only believed in."""
    if any(region.presumed for region in at.state.regions):
        return Confidence.LOW
    return Confidence.HIGH if all(value.sure for value in values if isinstance(value, Tensor)) else Confidence.MEDIUM


def operand(event: OpCall) -> Value | None:
    """The tensor that an operation works on, however it is spelled."""
    return event.receiver if event.name.startswith("Tensor.") else event.arg(0, "input")


def given(event: OpCall, position: int, keyword: str) -> Value | None:
    """An argument by its position in the functional spelling; the method has one less."""
    return event.arg(position - event.name.startswith("Tensor."), keyword)


@check("AMP501", on=(OpCall, Operation, Store, Cast))
def constant_beyond_half(at: Moment[OpCall | Operation | Store | Cast]) -> Iterator[Draft]:
    found = _constant(at.event)
    if found is None:
        return
    constant, tensor = found
    if isinstance(constant, Tensor):
        words = "a constant outside the range of float16 becomes infinite in the cast"
    else:
        words = f"{number(constant):g} is outside the range of float16, which ends at 65504"
    trail = [(tensor.at, "float16 from here")] if isinstance(tensor, Tensor) and tensor.at != at.event.at else []
    yield at.finding(words, trail=trail, confidence=sureness(at, tensor))


def _constant(event: OpCall | Operation | Store | Cast) -> tuple[Value, Value] | None:
    """A constant that is too large, and the float16 tensor that it meets."""
    match event:
        case Store(_, target, _, value) if half(target) and huge(value):
            return value, target
        case Cast(_, target, dtype) if (
            dtype == HALF and isinstance(target, Tensor) and "huge" in target.tags and not half(target)
        ):
            return target, target
        case Operation(_, op, left, right):
            return _arithmetic(op.removesuffix("="), left, right)
        case OpCall():
            return _in_call(event)
    return None


def _arithmetic(op: str, left: Value, right: Value) -> tuple[Value, Value] | None:
    for tensor, constant in ((left, right), (right, left)):
        if op in ("Multiply", "Add", "Subtract") and half(tensor) and huge(constant):
            return constant, tensor
    return None


def _in_call(event: OpCall) -> tuple[Value, Value] | None:
    short, tensor = apis.short(event.name).removesuffix("_"), operand(event)
    if short in ("masked_fill", "index_fill", "fill", "mul", "multiply", "add", "sub", "pad"):
        position = {"masked_fill": 2, "index_fill": 3, "pad": 3}.get(short, 1)
        value = given(event, position, "other" if short in ("mul", "multiply", "add", "sub") else "value")
        return (value, tensor) if value is not None and tensor is not None and half(tensor) and huge(value) else None
    if short == "where":
        method = event.name.startswith("Tensor.")
        first = event.receiver if method else event.arg(1, "input")
        second = event.arg(1 if method else 2, "other")
        for one, other in ((first, second), (second, first)):
            scalar = isinstance(other, Tensor) and {"huge", "scalar"} <= other.tags
            if one is not None and other is not None and half(one) and (huge(other) or scalar):
                return other, one
    if short in ("full", "full_like", "new_full", "tensor", "new_tensor") and half(event.result):
        value = event.arg(0, "data") if "tensor" in short else given(event, 1, "fill_value")
        constant = next((part for part in (value.items if isinstance(value, Items) else (value,)) if huge(part)), None)
        return (constant, event.result) if constant is not None else None
    return None


_CLAMPS = frozenset({"clamp", "clamp_min", "clip"})
_DEFAULT_EPS: dict[str, tuple[int, float]] = {"normalize": (3, 1e-12), "cosine_similarity": (3, 1e-8)}
_EPS_AT = {
    "layer_norm": 4,
    "group_norm": 4,
    "rms_norm": 3,
    "batch_norm": 7,
    "instance_norm": 7,
    "logit": 1,
    "pairwise_distance": 3,
}
_NORMS = frozenset(
    [
        "LayerNorm",
        "RMSNorm",
        "GroupNorm",
        "InstanceNorm1d",
        "InstanceNorm2d",
        "InstanceNorm3d",
        "BatchNorm1d",
        "BatchNorm2d",
        "BatchNorm3d",
        "SyncBatchNorm",
    ]
)


@check("AMP502", on=(Operation, OpCall))
def eps_below_half(at: Moment[Operation | OpCall]) -> Iterator[Draft]:
    if isinstance(at.event, OpCall) and (limit := _upper(at.event)) is not None and half(at.event.result):
        message = f"{number(limit):g} is 1 in float16: the clamp does nothing; do this step in float32"
        yield at.finding(message, confidence=sureness(at, operand(at.event)))
        return
    found = _added(at.event) if isinstance(at.event, Operation) else _guard(at.event)
    # Under autocast some of these run in float32: then the result says so.
    if found is None or not half(at.event.result):
        return
    eps, tensor = found
    yield at.finding(
        f"eps {number(eps):g} is zero in float16: do this step in float32, or take an eps of 1e-7 or more",
        trail=[(tensor.at, "float16 from here")] if isinstance(tensor, Tensor) and tensor.at != at.event.at else [],
        confidence=sureness(at, tensor),
    )


def _upper(event: OpCall) -> Value | None:
    """The upper limit of a clamp, if it is just below 1 and rounds to 1."""
    short, tensor = apis.short(event.name).removesuffix("_"), operand(event)
    if short not in ("clamp", "clip", "clamp_max") or not half(tensor):
        return None
    limit = given(event, 1 if short == "clamp_max" else 2, "max")
    found = number(limit)
    return limit if found is not None and 1.0 - 2.0**-12 <= found < 1.0 else None


def _added(event: Operation) -> tuple[Value, Value] | None:
    for tensor, eps in ((event.left, event.right), (event.right, event.left)):
        if event.op in ("Add", "Add=") and half(tensor) and lost(eps):
            return eps, tensor
    return None


def _guard(event: OpCall) -> tuple[Value, Value] | None:
    short, tensor = apis.short(event.name).removesuffix("_"), operand(event)
    eps: Value | None = None
    if short in _CLAMPS:
        eps = given(event, 1, "min")
    elif short == "add":
        eps = given(event, 1, "other")
    elif short in _DEFAULT_EPS and event.name.startswith("torch.nn.functional."):
        position, default = _DEFAULT_EPS[short]
        eps = event.arg(position, "eps") or Literal(default)
    elif short in _EPS_AT:
        eps = given(event, _EPS_AT[short], "eps")
    return (eps, tensor) if eps is not None and tensor is not None and half(tensor) and lost(eps) else None


@check("AMP502", on=(Forward, Cast))
def norm_eps_below_half(at: Moment[Forward | Cast]) -> Iterator[Draft]:
    """A norm layer inside a module that runs in float16 itself, not under autocast."""
    if isinstance(at.event, Cast):
        module, low = at.event.target, at.event.dtype == HALF
    else:
        module, low = at.event.module, modules.precision_of(at.event.module, at.state) == HALF
    if not isinstance(module, Object) or not modules.is_module_value(module) or at.region() is not None or not low:
        return
    what = "cast to float16 here" if isinstance(at.event, Cast) else "called in float16 here"
    for part in (module, *modules.descendants(module, at.state)):
        known = isinstance(part, Object) and part.api.rpartition(".")[2] in _NORMS
        if known and isinstance(part, Object) and lost(part.fact("eps")):
            yield at.finding(
                f"eps {number(part.fact('eps')):g} is zero in float16, and the layer runs in it",
                at=part.at,
                trail=[(at.event.at, what)],
                confidence=Confidence.MEDIUM,
            )
