"""AMP5: sums in float16, and what is written into a float16 tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.finding import Confidence
from amp_doctor.lint import apis
from amp_doctor.lint.checks.operators import half, operand, sureness
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import OpCall, Operation, Store
from amp_doctor.lint.marks import is_count, number
from amp_doctor.lint.objects import FP32, Items, Symbol, Tensor, Value

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
    if home is at.home(left.at) and home.places.loops(at.event.at, but=left.at):
        words = "a sum is collected in float16: it stops counting ones at 2048 and is infinite above 65504"
        yield at.finding(words, trail=[(left.at, "made in float16 here")])


@check("AMP504", on=OpCall)
def half_sum(at: Moment[OpCall]) -> Iterator[Draft]:
    short, tensor = apis.short(at.event.name), operand(at.event)
    if short not in ("sum", "nansum", "prod", "cumsum") or not isinstance(tensor, Tensor):
        return
    if not half(tensor) or not half(at.event.result):
        return
    stored, squared = "stored" in tensor.tags, "square" in tensor.tags and tensor.sure
    if at.region() is None and (stored or squared):
        what = "squares are" if "square" in tensor.tags else "values stored in float16 are"
        yield at.finding(
            f"{what} summed in float16, outside autocast: cast to float32 first",
            trail=[(tensor.at, "float16 from here")],
            confidence=sureness(at, tensor),
        )


@check("AMP505", on=Store)
def indexed_write_dtype(at: Moment[Store]) -> Iterator[Draft]:
    target, value = at.event.target, at.event.value
    if (
        not half(target)
        or not isinstance(value, Tensor)
        or value.dtype != FP32
        or not value.sure
        or "scalar" in value.tags
    ):
        return
    kinds = [_advanced(part) for part in at.event.index]
    if "tensor" in kinds or "named" in kinds:
        sure = sureness(at, target) if "named" not in kinds else Confidence.MEDIUM
        yield at.finding(
            "a float32 result is written by index into a float16 tensor, which raises: cast it with .to(target.dtype)",
            trail=[
                (target.at if isinstance(target, Tensor) else 0, "float16 from here"),
                (value.at, "float32 from here"),
            ],
            confidence=sure,
        )


_PLURAL = re.compile(r"(mask|inds|indices|idxs|ids|keep|[^aiosu]s)$", re.IGNORECASE)
"""Names of several indices or of a mask; `pos`, `cls`, `axis` and `bias` are none."""


def _advanced(part: Value | None) -> str:
    """Whether an index is a tensor or a list, is called like one, or may be an integer."""
    if isinstance(part, Tensor) or (isinstance(part, Items) and part.kind == "list"):
        return "tensor"
    named = (
        isinstance(part, Symbol)
        and len(part.name) > 3
        and _PLURAL.search(part.name) is not None
        and "@" not in part.key
    )
    return "named" if named else ""


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
