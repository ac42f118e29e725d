"""What numbers a value holds and how a tensor came about: the marks that the checks of operators look for."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from amp_doctor.lint.objects import BF16, FP32, HALF, Items, Literal, Object, Symbol, Tensor, Value, dtype_of, flat

if TYPE_CHECKING:
    from collections.abc import Sequence

HALF_MAX = 65504.0
HALF_ZERO = 2.0**-25
"""What is not larger rounds to zero in float16."""

_FORMATS = {
    HALF: (65504.0, 2.0**-10, 2.0**-14),
    BF16: (3.3895313892515355e38, 2.0**-7, 2.0**-126),
    FP32: (3.4028234663852886e38, 2.0**-23, 2.0**-126),
    "float64": (1.7976931348623157e308, 2.0**-52, 2.0**-1022),
}
"""Of each dtype the largest number, eps, and the smallest normal number."""

_COUNTED = re.compile(
    r"\.(shape|size|numel|nelement|ndim|dim)\b|(^|\()(len|int|float|round)\(|^math\.|#number|"
    r"(^|\.)(args|cfg|config|opts?|hparams|conf|flags)[~.]"
)
"""Keys of symbols that stand for a number: sizes of tensors, results of Python's own functions, options."""
_SETTING = re.compile(r"(^|_)(t|tau|temp|temperature|eps|epsilon|smooth|smoothing|margin|dropout|ratio)$")
"""Names of settings that are numbers."""

_SHAPES = frozenset(
    [
        "view",
        "reshape",
        "flatten",
        "squeeze",
        "unsqueeze",
        "permute",
        "transpose",
        "expand",
        "expand_as",
        "repeat",
        "contiguous",
        "clone",
        "triu",
        "tril",
        "t",
        "swapaxes",
        "movedim",
        "narrow",
        "clamp",
        "clamp_min",
        "clamp_max",
        "detach",
        "index_select",
        "gather",
        "roll",
        "flip",
        "masked_fill",
        "where",
        "to",
        "type_as",
        "cat",
        "stack",
    ]
)
_KEPT = frozenset(
    [
        "softmax",
        "exp",
        "exp-sum",
        "square",
        "square-sum",
        "low-sigmoid",
        "huge",
        "difference",
        "distance",
        "overlap",
        "scalar",
        "upcast",
        "zeros",
    ]
)
_REDUCTIONS = frozenset(
    ["sum", "mean", "max", "min", "amax", "amin", "norm", "prod", "std", "var", "logsumexp", "median"]
)


def number(value: Value | None) -> float | None:
    """The number that is written in the source, if it is one."""
    if isinstance(value, Literal) and isinstance(value.value, int | float) and not isinstance(value.value, bool):
        try:
            return float(value.value)
        except OverflowError:
            return None
    return None


def huge(value: Value | None) -> bool:
    """A finite number that float16 cannot hold."""
    found = number(value)
    return found is not None and math.isfinite(found) and abs(found) > HALF_MAX


def lost(value: Value | None) -> bool:
    """A number that is not zero, and is zero in float16."""
    found = number(value)
    return found is not None and 0.0 < abs(found) <= HALF_ZERO


def is_number(value: Value) -> bool:
    """True for what is surely a Python number, which promotes no tensor."""
    if isinstance(value, Literal):
        return isinstance(value.value, int | float)
    if not isinstance(value, Symbol):
        return False
    # An argument, or an attribute that was one.
    given = "@" not in value.key and "." not in value.key and _SETTING.search(value.name) is not None
    return given or _COUNTED.search(value.key) is not None


def is_count(value: Value) -> bool:
    """The number of elements along a dimension, and no root of it."""
    if not isinstance(value, Symbol) or "Power" in value.key or "math." in value.key:
        return False
    return re.search(r"\.(shape|size)\b.*\[|\.numel|\.nelement|^len\(|\.size$", value.key) is not None


def finfo(info: Object, name: str) -> Literal | None:
    """`torch.finfo(torch.float32).min` as the number it is."""
    largest, eps, tiny = _FORMATS.get(dtype_of(info.fact("dtype")) or "", (None, None, None))
    if largest is None:
        return None
    found = {"max": largest, "min": -largest, "eps": eps, "tiny": tiny, "smallest_normal": tiny}.get(name)
    return Literal(found) if found is not None else None


def filled(
    short: str, args: Sequence[tuple[str | None, Value]], dtype: str | None
) -> tuple[str | None, frozenset[str]]:
    """The dtype and the marks of what a factory makes when only its fill value tells the dtype."""
    plain = [value for key, value in args if key is None]
    named = {key: value for key, value in args if key}
    if short in ("zeros", "ones", "empty", "eye", "rand", "randn"):
        return dtype or FP32, frozenset({"zeros"} if short == "zeros" and dtype == HALF else ())
    position = 0 if short in ("tensor", "as_tensor") else 1
    fill = named.get("fill_value") or named.get("data") or (plain[position] if position < len(plain) else None)
    parts = flat(fill)
    numbers = [number(part) for part in parts]
    tags: set[str] = set()
    if any(huge(part) for part in parts):
        tags.add("huge")
    if short in ("tensor", "as_tensor") and not isinstance(fill, Items):
        tags.add("scalar")
        if number(fill) == 0 and dtype == HALF:
            tags.add("zeros")
    if dtype is None and parts and all(isinstance(part, Literal) for part in parts):
        dtype = FP32 if any(isinstance(part, Literal) and isinstance(part.value, float) for part in parts) else "other"
    if short == "as_tensor" and not numbers:
        return None, frozenset()
    return dtype, frozenset(tags)


def mark(
    result: Tensor, name: str, inputs: Sequence[Tensor], operand: Value | None = None, whole: bool = False
) -> Tensor:
    "`result` with the marks of how it was made: by op `name` on `inputs`; `whole`: a reduction over"
    "everything. "
    first = inputs[0] if inputs else Tensor()
    before = first.tags
    tags: set[str] = set()
    if name in _SHAPES:
        tags |= before & _KEPT if name not in ("cat", "stack") else before & {"huge"}
    elif name == "softmax":
        tags.add("softmax")
    elif name in ("subtract", "sub"):
        tags.add("difference")
    elif name == "abs" and "difference" in before:
        tags.add("distance")
    elif name in ("multiply", "mul", "add") and any(each.tags & {"low-sigmoid", "softmax"} for each in inputs):
        tags.add("overlap")
    elif name == "exp" and "difference" not in before:
        tags.add("exp")
    elif (
        name == "square"
        or (name == "pow" and number(operand) == 2)
        or (name == "multiply" and len(inputs) == 2 and inputs[0] is inputs[1])
    ):
        tags.add("square")
    elif name == "sum":
        tags |= {f"{tag}-sum" for tag in ("exp", "square") if tag in before}
    elif name == "sigmoid" and result.dtype in (HALF, BF16):
        tags.add("low-sigmoid")
    if whole and name in _REDUCTIONS:
        tags.add("scalar")
    if name in ("multiply", "mul", "masked_fill", "where", "full", "full_like", "new_full") and huge(operand):
        tags.add("huge")
    return result.tagged(*tags)
