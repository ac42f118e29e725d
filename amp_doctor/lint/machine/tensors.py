"""The dtype of a tensor as CUDA autocast makes it: what operations and modules return, by region and operands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.assume import decide
from amp_doctor.lint.machine import marks
from amp_doctor.lint.objects import BF16, FP32, HALF, Symbol, Tensor, Value, flat

if TYPE_CHECKING:
    from amp_doctor.lint.state import Region, State

LOW = (HALF, BF16)
COMPLEX = "complex"
"""Any complex dtype: autocast leaves such tensors alone."""


def active_region(state: State) -> Region | None:
    """The autocast region in force, or None when there is none or it is surely disabled."""
    if not state.regions:
        return None
    region = state.regions[-1]
    return None if decide(region.enabled, state.known) is False else region


def region_dtype(state: State) -> str | None:
    """The low-precision dtype in force (None: no region, or its dtype is not known)."""
    region = active_region(state)
    return region.dtype if region is not None and region.dtype in LOW else None


def region_tag(state: State) -> frozenset[str]:
    """`fp16` or `bf16` for what is computed in such a region."""
    dtype = region_dtype(state)
    if dtype is None and active_region(state) is not None:
        return frozenset({"region"})
    return frozenset({"fp16"} if dtype == HALF else {"bf16"} if dtype == BF16 else ())


def off_tag(state: State) -> frozenset[str]:
    """`off@N` when the innermost context that could have been autocast (at node N) surely is none."""
    for mark in reversed(state.modes):
        if mark == "region":
            return frozenset()
        if "off@" in mark:
            return frozenset({mark.split(":")[1]})
    return frozenset()


def tensors_in(values: list[Value]) -> list[Tensor]:
    """Every tensor among the values, lists and tuples opened."""
    return [item for value in values for item in flat(value) if isinstance(item, Tensor)]


def merged(inputs: list[Tensor]) -> Tensor:
    """What a result inherits from its inputs, dtype aside."""
    if not inputs:
        return Tensor()
    tags = frozenset(
        tag
        for each in inputs
        for tag in each.tags
        if tag in _INHERITED or tag.startswith("off@") or (tag.startswith("cast@") and "detached" not in each.tags)
    )
    if all("leaf" in each.tags for each in inputs):
        tags |= {tag for each in inputs for tag in each.tags if tag.startswith("leaf")}
    scaled = next((each.scaled for each in inputs if each.scaled), None)
    return Tensor(
        scaled=scaled,
        sources=frozenset(source for each in inputs for source in each.sources),
        tags=tags,
        sure=all(each.sure for each in inputs),
        at=inputs[0].at,
    )


_INHERITED = frozenset({"fp16", "bf16", "rescaled", "gradient", "unseen", "region", "unreduced", "stored", "compiled"})
_TRANSFORMS = frozenset(f"fft.{kind}{n}" for kind in ("fft", "ifft", "rfft", "ihfft") for n in ("", "2", "n")) | {
    "stft"
}
_REDUCTIONS = frozenset(
    {"mean", "sum", "nanmean", "nansum", "max", "min", "amax", "amin", "norm", "logsumexp", "median"}
)


def promoted(inputs: list[Tensor]) -> str | None:
    """The dtype that arithmetic between tensors gives: unknown wins, then the widest."""
    spread = [each for each in inputs if "scalar" not in each.tags]
    dtypes = [each.dtype for each in spread or inputs]
    if None in dtypes or not dtypes:
        return None
    if COMPLEX in dtypes:
        return COMPLEX
    # Integers and truth values yield to any floating dtype.
    dtypes = [dtype for dtype in dtypes if dtype != "other"] or dtypes
    if len(set(dtypes)) == 1:
        return dtypes[0]
    return FP32 if "float64" not in dtypes else "float64"


def op_result(name: str, inputs: list[Tensor], state: State, at: int, mixed: bool = False) -> Tensor:
    """The result of a library op called `name` (short form) on these tensors.

    `mixed`: an operand is not known to be a tensor or a number, so promotion cannot be excluded.
    """
    base = merged(inputs)
    low = region_dtype(state)
    tags = base.tags | region_tag(state)
    if name in _REDUCTIONS:
        tags -= {"unreduced"}
    if name in apis.LOSSES or name.endswith("_loss"):
        tags |= {"loss"}
    if COMPLEX in {each.dtype for each in inputs} or name in _TRANSFORMS:
        real = name in ("abs", "angle", "view_as_real", "fft.irfft", "fft.irfft2", "fft.irfftn", "fft.hfft", "istft")
        known = all(each.dtype is not None for each in inputs)
        return replace(base, dtype=(FP32 if real else COMPLEX) if known else None, tags=tags, at=at)
    if name in apis.LOWER_PRECISION:
        if low is not None:
            return replace(base, dtype=low, sure=True, tags=tags | {"contraction"}, at=at)
        if active_region(state) is not None:
            return replace(base, dtype=None, sure=False, tags=tags | {"contraction"}, at=at)
        return replace(base, dtype=promoted(inputs), tags=tags | {"contraction"}, at=at)
    if name in apis.FLOAT32_OPS and low == HALF:
        return replace(base, dtype=FP32, sure=True, tags=tags, at=at)
    if name in apis.FLOAT32_OPS and low == BF16:
        return replace(base, dtype=FP32, sure=True, tags=tags, at=at)
    if name == "sigmoid":
        tags |= {"sigmoid"}
    if name in ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm") and inputs and low is None:
        return replace(base, dtype=inputs[0].dtype, sure=inputs[0].sure, tags=tags, at=at)
    if name in (
        "argmax",
        "argmin",
        "argsort",
        "eq",
        "ne",
        "gt",
        "lt",
        "ge",
        "le",
        "isnan",
        "isinf",
        "isfinite",
        "bool",
        "long",
        "int",
    ):
        return Tensor("other", True, None, frozenset(), frozenset(), at)
    dtype = promoted(inputs) if not mixed else None
    # float16 beside float32: a tensor without dimensions would not have promoted it.
    alike = len({each.dtype for each in inputs} - {"other"}) < 2 or any(
        each.dtype == FP32 and "softmax" in each.tags for each in inputs
    )
    return replace(base, dtype=dtype, sure=base.sure and not mixed and alike, tags=tags, at=at)


def module_result(
    module: Value, api: str, inputs: list[Tensor], state: State, at: int, source: str, precision: str | None
) -> Tensor:
    """What calling a module returns: known for built-in layers, likely half for unknown models under autocast."""
    base = merged(inputs)
    low = region_dtype(state)
    tags = base.tags | region_tag(state) | off_tag(state)
    sources = base.sources | {source}
    if api and apis.LOWER_MODULES.match(api):
        known = low is not None or active_region(state) is None
        dtype = low or precision or promoted(inputs)
        return Tensor(dtype if known else None, known, base.scaled, sources, tags, at)
    if api and api.startswith("torch.nn.Embedding"):
        return Tensor(precision or FP32, True, base.scaled, sources, tags, at)
    if api and apis.FLOAT32_MODULES.match(api):
        tags |= {"loss"} if api.endswith("Loss") else frozenset()
        return Tensor(FP32 if low else promoted(inputs), True, base.scaled, sources, tags, at)
    if api:
        result = Tensor(promoted(inputs), base.sure, base.scaled, sources, tags, at)
        if api == "torch.nn.Sigmoid":
            return marks.mark(result.tagged("sigmoid"), "sigmoid", inputs)
        return result
    name = module.name if isinstance(module, Symbol) else ""
    if apis.LOSSISH.search(name):
        return Tensor(None, False, base.scaled, sources, tags | {"loss"}, at)
    if low is not None:
        # A function that was imported, and is not seen, is less likely a model.
        imported = isinstance(module, Symbol) and (".py:" in module.key or module.key.startswith("import:"))
        return Tensor(None if imported else low, False, base.scaled, sources, tags | {"output"}, at)
    return Tensor(precision, False, base.scaled, sources, tags | {"output"}, at)
