"""The recommendation as code to paste, in today's API (`apex.amp` and its opt levels are gone since May 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.operators import writes_in_place
from amp_doctor.diagnosis.precision import any_half
from amp_doctor.diagnosis.words import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import KeepFP32, Recommendation

_REFUSED_LOSS = "binary_cross_entropy"
_KINDS = ("cuda", "mps", "xpu")
# The compute capability from which on GPUs have TF32.
_TF32 = (8, 0)
_CLIP = "    # Clip here, if at all: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
# What a layer is called with may be nested: the states of an LSTM, a dictionary of masks, a packed sequence.
_AS_FLOAT32 = (
    "def as_float32(value):",
    "    if torch.is_tensor(value):",
    "        return value.float() if value.is_floating_point() else value",
    "    if isinstance(value, dict):",
    "        return {name: as_float32(one) for name, one in value.items()}",
    '    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple',
    "        return type(value)(*map(as_float32, value))",
    "    if isinstance(value, (tuple, list)):",
    "        return type(value)(map(as_float32, value))",
    "    return value",
)


def snippet(recommendation: Recommendation, profile: Profile) -> str:
    """Code around the names `model`, `optimizer`, `criterion` and `loader`, for the device of the run or for CUDA."""
    device = profile.device.kind if profile.device.kind in _KINDS else "cuda"
    before: list[str] = []
    # CUDA's autocast takes no such loss: it is computed outside.
    outside = any(one.refused and one.operator.startswith(_REFUSED_LOSS) for one in recommendation.keep_fp32)
    if any_half(profile.precision.weights):
        before.append(
            "model.float()  # weights in FP32, before the optimizer is built: autocast casts what may be half"
        )
    if recommendation.dtype == "float16":
        before += _scaler(recommendation, device)
        layers = [one.layer for one in recommendation.keep_fp32 if one.whole]
        before += _islands(layers, device) if layers else []
        before += _lines([one for one in recommendation.keep_fp32 if not one.whole], device)
        loop = _float16(device, outside=outside)
    elif recommendation.dtype == "bfloat16":
        before += _lines([one for one in recommendation.keep_fp32 if one.refused], device)
        loop = _bfloat16(device, outside=outside)
    else:
        before += (
            ['torch.set_float32_matmul_precision("high")  # TF32 in matrix products'] if _has_tf32(profile) else []
        )
        loop = _float32()
    lines = [*before, *([""] if before else []), *loop]
    return "\n".join(["import torch", "", *lines[not lines[0] :]]) + "\n"


def _has_tf32(profile: Profile) -> bool:
    return (profile.device.capability or (0, 0)) >= _TF32


def _scaler(recommendation: Recommendation, device: str) -> list[str]:
    start = recommendation.loss_scale.init_scale
    if start is None:
        return [f'scaler = torch.amp.GradScaler("{device}")']
    return [f'scaler = torch.amp.GradScaler("{device}", init_scale=2.0**{round(start).bit_length() - 1})']


def _islands(names: Sequence[str], device: str) -> list[str]:
    return [
        "",
        f"# Stays in FP32: {listed(list(names))}. Where you call such a layer yourself, this is the same:",
        f'#     with torch.autocast("{device}", enabled=False):',
        "#         y = layer(x.float())",
        *_AS_FLOAT32,
        "",
        "def run_in_float32(layer):",
        "    forward = layer.forward",
        "",
        "    def in_float32(*inputs, **options):",
        f'        with torch.autocast("{device}", enabled=False):',
        "            return forward(*as_float32(inputs), **as_float32(options))",
        "",
        "    layer.forward = in_float32",
        "",
        f"for name in [{', '.join(_quoted(name) for name in names)}]:",
        "    run_in_float32(model.get_submodule(name))",
    ]


def _lines(kept: Sequence[KeepFP32], device: str) -> list[str]:
    """How an operator stays in FP32, at its line: no code from here reaches into a forward method."""
    out: list[str] = []
    for one in kept:
        out += [
            *([] if out else ["", "# Operators that stay in FP32, each at its line:"]),
            f"#     {_told(one.name)}: {_told(one.reason)}",
        ]
    if out:
        out += [
            f'#     with torch.autocast("{device}", enabled=False):',
            "#         ...  # the line as it is, with .float() after each tensor that the operator reads",
        ]
        out += _in_place([one.operator for one in kept if writes_in_place(one.operator)])
        if any(one.refused and one.operator.startswith(_REFUSED_LOSS) for one in kept):
            out.append("# Better: binary_cross_entropy_with_logits, without the sigmoid, needs no such region.")
    return out


def _in_place(operators: Sequence[str]) -> list[str]:
    """What writes into a copy that `.float()` has made leaves the tensor itself as it was."""
    if not operators:
        return []
    return [
        "#     What writes in place would write into such a copy, which is lost. Make a new tensor in FP32 instead:",
        *(f"#         {_anew(_told(name))}" for name in dict.fromkeys(operators)),
    ]


def _anew(name: str) -> str:
    if name.endswith("_") and not name.startswith("_"):
        return f"out = out.float().{name.rstrip('_')}(...)  # and not out.{name}(...)"
    return f"x = x.float()  # before the line, for {name}"


def _told(text: str) -> str:
    """What can stand in a comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _float16(device: str, *, outside: bool) -> list[str]:
    return [
        "for x, y in loader:",
        "    optimizer.zero_grad(set_to_none=True)",
        f'    with torch.autocast("{device}", dtype=torch.float16):',
        *_loss(outside),
        "    scaler.scale(loss).backward()",
        "    scaler.unscale_(optimizer)",
        _CLIP,
        "    scaler.step(optimizer)",
        "    scaler.update()",
    ]


def _bfloat16(device: str, *, outside: bool) -> list[str]:
    return [
        "for x, y in loader:",
        "    optimizer.zero_grad(set_to_none=True)",
        f'    with torch.autocast("{device}", dtype=torch.bfloat16):  # no GradScaler: BF16 has the range of FP32',
        *_loss(outside),
        "    loss.backward()",
        _CLIP,
        "    optimizer.step()",
    ]


def _loss(outside: bool) -> list[str]:
    if not outside:
        return ["        loss = criterion(model(x), y)"]
    return [
        "        output = model(x)",
        "    loss = criterion(output.float(), y)  # outside: autocast refuses binary_cross_entropy",
    ]


def _float32() -> list[str]:
    return [
        "for x, y in loader:  # no autocast and no GradScaler",
        "    optimizer.zero_grad(set_to_none=True)",
        "    loss = criterion(model(x), y)",
        "    loss.backward()",
        _CLIP,
        "    optimizer.step()",
    ]
