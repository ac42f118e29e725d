"""What a precision could bring on a GPU, from the calls of a replayed step: a range with its assumptions.

Each call takes the longer of its arithmetic and its memory traffic (the roofline model), and a launch. The backward
pass is taken to gain as the forward pass does; optimizer, input and communication are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch

from amp_doctor.probe.dtypes import LOW

if TYPE_CHECKING:
    from torch import fx

    from amp_doctor.probe.replayed import Node, Replayed


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks from the data sheets: FP32 and half Tensor Core operations, and bytes, each per second."""

    name: str
    fp32: float
    half: float
    memory: float


GPUS = (
    Gpu("T4", 8.1e12, 65e12, 320e9),
    Gpu("V100", 15.7e12, 125e12, 900e9),
    Gpu("A100", 19.5e12, 312e12, 1555e9),
    Gpu("H100", 67e12, 989e12, 3350e9),
)
# Seconds from one launch to the next, when a GPU waits for Python; and the share of the peaks that kernels reach.
_LAUNCH = 5e-6
_REACHED = 0.5
ASSUMPTIONS = (
    "forward pass only, FP32 without TF32, half of the peaks of the data sheets reached; the low end waits 5 "
    "microseconds for every launch, casts included, the high end never"
)


@dataclass(frozen=True, slots=True)
class Gains:
    """`tensor_cores` is the share of the FLOPs in half products, `aligned` the share of those in multiples of 8.

    `low` and `high` bound the speed-up per GPU; `activations` and `activations_fp32` are the bytes of all results.
    """

    flops: int
    tensor_cores: float
    aligned: float
    casts: int
    activations: int
    activations_fp32: int
    speed: dict[str, tuple[float, float]]
    assumptions: str = ASSUMPTIONS


def gains(replayed: Replayed) -> Gains:
    """From the calls as they were replayed."""
    nodes = [one for one in replayed.nodes if one.node.meta.get("shape") is not None]
    flops = sum(one.flops for one in nodes)
    half = [one for one in nodes if one.flops and one.dtype in LOW]
    products = sum(one.flops for one in half)
    return Gains(
        flops,
        products / flops if flops else 0.0,
        sum(one.flops for one in half if not misaligned(one)) / products if products else 0.0,
        sum(one.casts for one in nodes),
        sum(_bytes(one.node, one.dtype) for one in nodes if not _is_view(one)),
        sum(_bytes(one.node, None) for one in nodes if not _is_view(one)),
        {gpu.name: (_ratio(nodes, gpu, _LAUNCH), _ratio(nodes, gpu, 0.0)) for gpu in GPUS},
    )


def misaligned(one: Node) -> tuple[int, ...]:
    """The dimensions of a product that are no multiples of 8, where Tensor Cores are slower: of operands and result."""
    shapes = [one.node.meta.get("shape") or (), *(i.meta.get("shape") or () for i in one.inputs)]
    sizes = {size for shape in shapes if len(shape) > 1 for size in shape[-2:]} if "conv" not in one.node.name else {
        size for shape in shapes if len(shape) > 2 for size in shape[:2]
    }  # fmt: skip
    return tuple(sorted(size for size in sizes if size % 8))


def _ratio(nodes: list[Node], gpu: Gpu, launch: float) -> float:
    before = after = 0.0
    for one in nodes:
        if _is_view(one):
            continue
        traffic = sum(_bytes(i, None) for i in one.inputs)
        wide = max(one.flops / gpu.fp32, (traffic + _bytes(one.node, None)) / gpu.memory) / _REACHED
        low_traffic = traffic / (2 if one.dtype in LOW else 1) + _bytes(one.node, one.dtype)
        peak = gpu.half if one.dtype in LOW else gpu.fp32
        # A cast reads four bytes per element and writes two.
        casts = 1.5 * traffic / gpu.memory / _REACHED if one.casts else 0.0
        before += wide + launch
        after += max(one.flops / peak, low_traffic / gpu.memory) / _REACHED + casts + launch * (1 + one.casts)
    return before / after if after else 1.0


def _bytes(node: fx.Node, dtype: torch.dtype | None) -> int:
    recorded = node.meta.get("dtype") or torch.float32
    size = (dtype if dtype is not None and recorded.is_floating_point else recorded).itemsize
    return prod(node.meta.get("shape") or ()) * size


def _is_view(one: Node) -> bool:
    return one.node.meta.get("bits") is None
