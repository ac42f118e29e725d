"""A step under one precision: what each of its calls came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amp_doctor.probe.compare import Compared

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import fx

    from amp_doctor.probe.backward import Flow
    from amp_doctor.probe.precisions import Precision
    from amp_doctor.probe.zeros import Arrived, Place


@dataclass(slots=True)
class Node:
    """What a call came to. `dtype` is that of its result under the precision; `inputs` are the nodes it read.

    `refused` holds the words of an error that the reduced precision raised, `mixed` whether half met FP32 there; `cast`
    the largest magnitude of an input that the cast to half made infinite; `swallowed` the share of a sum that it does
    not notice; `masks` that its infinities are those of a mask, `mended` that others were replaced; `collapsed` the
    share of neighbouring whole numbers that are the same now; `rerouted` that it read other indices than in FP32.
    `flow` is what its backward did, where there was one.
    """

    node: fx.Node
    dtype: torch.dtype | None = None
    compared: Compared = field(default_factory=Compared)
    casts: int = 0
    cast: float = 0.0
    refused: str = ""
    mixed: bool = False
    swallowed: float = 0.0
    masks: bool = False
    mended: bool = False
    collapsed: float = 0.0
    rerouted: bool = False
    flops: int = 0
    inputs: tuple[fx.Node, ...] = ()
    flow: Flow | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step under one precision. `losses` are pairs, FP32 and reduced; `gradients` likewise one comparison per leaf.

    `gradient_error` is the norm of the difference of all gradients over that of FP32's; `half_loss` is the largest
    gradient of a scalar that is float16, as a loss may be, in true units. `arrived` is what `Zeros.arrived` gives.
    """

    precision: Precision
    nodes: tuple[Node, ...]
    losses: tuple[tuple[float, float], ...] = ()
    gradients: tuple[tuple[str, Compared], ...] = ()
    gradient_error: float = 0.0
    scale: float = 1.0
    half_loss: float = 0.0
    arrived: Mapping[tuple[Place, float], Arrived] = field(default_factory=dict)
