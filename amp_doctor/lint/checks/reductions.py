"""AMP5: sums in float16, and what is written into a float16 tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Confidence
from amp_doctor.lint import apis
from amp_doctor.lint.checks.operators import given, half, operand, sureness
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import OpCall, Operation, Store
from amp_doctor.lint.machine.marks import is_count, number
from amp_doctor.lint.objects import BF16, FP32, HALF, Items, Symbol, Tensor, Value

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP503", on=(OpCall, Operation))
def unstable_reduction(at: Moment[OpCall | Operation]) -> Iterator[Draft]:
    if isinstance(at.event, OpCall):
        short, tensor = apis.short(at.event.name).removesuffix("_"), operand(at.event)
    else:
        short, tensor = "sqrt" if at.event.op == "Power" and number(at.event.right) == 0.5 else "", at.event.left
    if not isinstance(tensor, Tensor) or (at.region() is None and not tensor.tags & {"fp16", "bf16"}):
        return
    for op, tag, stable in (
        ("log", "softmax", "log_softmax"),
        ("log", "exp-sum", "logsumexp"),
        ("sqrt", "square-sum", "vector_norm"),
    ):
        if short == op and tag in tensor.tags:
            yield at.finding(
                f"a reduction written by hand: {stable} is stable",
                trail=[(tensor.at, "this is its other half")],
                confidence=sureness(at),
            )


@check("AMP504", on=Operation)
def half_counter(at: Moment[Operation]) -> Iterator[Draft]:
    left = at.event.left
    if at.event.op not in ("Add", "Add=") or not isinstance(left, Tensor) or not half(left) or not left.sure:
        return
    if "zeros" not in left.tags:
        return
    home = at.home(at.event.at)
    if home is not at.home(left.at):
        return
    if home.places.loops(at.event.at, but=left.at) or _kept(at, left.at):
        words = "a sum is collected in float16: it stops counting ones at 2048 and is infinite above 65504"
        yield at.finding(words, trail=[(left.at, "made in float16 here")])


def _kept(at: Moment[Operation], made: int) -> bool:
    """An attribute that was made elsewhere and grows with every call of this method."""
    if at.event.op != "Add=" or not at.text(at.event.at).startswith("self."):
        return False
    places = at.home(made).places
    start, end = places.bytes_of(at.interpreter.stack[-1].function.at)
    return not start <= places.bytes_of(made)[0] < end


@check("AMP504", on=OpCall)
def half_sum(at: Moment[OpCall]) -> Iterator[Draft]:
    short, tensor = apis.short(at.event.name), operand(at.event)
    if short not in ("sum", "nansum", "prod", "cumsum", "mean") or not isinstance(tensor, Tensor):
        return
    if not half(tensor) or not half(at.event.result) or (short == "mean" and "square" not in tensor.tags):
        return
    stored, squared = "stored" in tensor.tags, "square" in tensor.tags and tensor.sure
    apart = "distance" in tensor.tags and tensor.sure
    overlap = bool(tensor.tags & {"overlap", "low-sigmoid"}) and "fp16" in tensor.tags
    if at.region() is None and (stored or squared or apart or overlap):
        what = "squares are" if "square" in tensor.tags else "values stored in float16 are"
        if not stored and not squared:
            what = "distances are" if apart else "probabilities are"
        yield at.finding(
            f"{what} {'averaged' if short == 'mean' else 'summed'} in float16, outside autocast: cast to float32 first",
            trail=[(tensor.at, "float16 from here")],
            confidence=sureness(at, tensor),
        )


@check("AMP505", on=Store)
def indexed_write_dtype(at: Moment[Store]) -> Iterator[Draft]:
    target, value = at.event.target, at.event.value
    kinds = [_advanced(part, len(at.event.index)) for part in at.event.index]
    if ("tensor" in kinds or "named" in kinds) and _differ(target, value):
        yield _mismatch(at, target, value, Confidence.MEDIUM if "named" in kinds else sureness(at, target))


_SOURCES = {
    "scatter": (3, "src"),
    "scatter_add": (3, "src"),
    "scatter_reduce": (3, "src"),
    "index_add": (3, "source"),
    "index_copy": (3, "source"),
    "masked_scatter": (2, "source"),
    "index_put": (2, "values"),
}
"""Where the functional spelling has what is written."""
_PROMOTED = ("scatter_add", "index_put")
"""Autocast widens the operands of these, unless they work in place."""


@check("AMP505", on=OpCall)
def scattered_dtype(at: Moment[OpCall]) -> Iterator[Draft]:
    short = apis.short(at.event.name)
    base = short.removesuffix("_")
    if base not in _SOURCES or (short in _PROMOTED and at.region() is not None):
        return
    target, value = operand(at.event), given(at.event, *_SOURCES[base])
    if _differ(target, value):
        yield _mismatch(at, target, value, sureness(at, target))


def _differ(target: Value | None, value: Value | None) -> bool:
    """A tensor of one floating dtype is written into one of another; a single number is not minded."""
    if not isinstance(target, Tensor) or not isinstance(value, Tensor) or not value.sure:
        return False
    if "scalar" in value.tags | target.tags or not (target.sure or half(target)):
        return False
    return {target.dtype, value.dtype} in ({HALF, FP32}, {BF16, FP32})


def _mismatch(at: Moment[Any], target: Value | None, value: Value | None, sure: Confidence) -> Draft:
    assert isinstance(target, Tensor) and isinstance(value, Tensor)  # noqa: PT018
    kind, into = f"a {value.dtype} result is written by index", f"a {target.dtype} tensor, which raises"
    return at.finding(
        f"{kind} into {into}: cast it with .to(target.dtype)",
        trail=[(target.at, f"{target.dtype} from here"), (value.at, f"{value.dtype} from here")],
        confidence=sure,
    )


_PLURAL = re.compile(r"(^(is|has|where)_\w+|mask|inds|indices|idxs|ids|keep|[^aiosu]s)$", re.IGNORECASE)
"""Names of several indices or of a mask; `pos`, `cls`, `axis` and `bias` are none."""
_MASK = re.compile(r"^(is|has)_\w+|mask$|^keep$|indices$", re.IGNORECASE)


def _advanced(part: Value | None, indices: int) -> str:
    """Whether an index is a tensor or a list, is called like one, or may be an integer."""
    if isinstance(part, Tensor) or (isinstance(part, Items) and part.kind == "list"):
        return "tensor"
    if not isinstance(part, Symbol) or len(part.name) < 4:
        return ""
    # What a loop hands out may be an integer, but not when it is called a mask.
    several = indices > 1 and "[" in part.key
    named = _MASK if "@" in part.key and not several else _PLURAL
    return "named" if named.search(part.name) is not None else ""


@check("AMP506", on=(Operation, OpCall))
def half_sum_before_division(at: Moment[Operation | OpCall]) -> Iterator[Draft]:
    left, right = _division(at.event)
    if isinstance(left, Tensor) and half(left) and "contraction" in left.tags and right is not None and is_count(right):
        yield at.finding(
            "a product that serves as a sum runs in float16 and is divided only afterwards: divide one factor first",
            at=left.at,
            trail=[(at.event.at, "divided here")],
            confidence=sureness(at, left),
        )


def _division(event: Operation | OpCall) -> tuple[Value | None, Value | None]:
    """What is divided, and by what; nothing when the event is no division."""
    if isinstance(event, Operation):
        return (event.left, event.right) if event.op in ("Divide", "Divide=") else (None, None)
    return (event.receiver, event.arg(0, "other")) if event.name in ("Tensor.div", "Tensor.div_") else (None, None)


_SLICES = re.compile(r"\(?\s*([\w.]+)\[([^\[\]]*)\]\s*-\s*\1\[([^\[\]]*)\]")
_NEIGHBOURS = {("1:", ":-1"), (":-1", "1:"), ("2:", ":-2"), (":-2", "2:")}


@check("AMP507", on=(Operation, OpCall))
def adjacent_difference(at: Moment[Operation | OpCall]) -> Iterator[Draft]:
    event = at.event
    if isinstance(event, Operation):
        tensor: Value | None = event.left
        low = event.op == "Subtract" and _low(event.left) and _low(event.right)
        found = low and _neighbours(at.text(event.at))
    else:
        tensor = operand(event)
        found = apis.short(event.name) == "diff" and _low(tensor)
    if found and isinstance(tensor, Tensor):
        yield at.finding(
            f"neighbouring values are subtracted in {tensor.dtype}, which leaves mostly rounding error: use float32",
            trail=[(tensor.at, f"{tensor.dtype} from here")],
            confidence=sureness(at, tensor),
        )


def _low(value: Value | None) -> bool:
    return isinstance(value, Tensor) and value.dtype in (HALF, BF16)


def _neighbours(text: str) -> bool:
    """`x[:, 1:] - x[:, :-1]`: the same tensor, moved by one along one dimension."""
    found = _SLICES.match(text)
    if found is None:
        return False
    left, right = ([part.replace(" ", "") for part in side.split(",")] for side in found.group(2, 3))
    if len(left) != len(right):
        return False
    pairs = [(one, other) for one, other in zip(left, right, strict=True) if one != other]
    return len(pairs) == 1 and pairs[0] in _NEIGHBOURS
