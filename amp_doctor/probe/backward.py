"""What the backward of each call makes of the gradient it is given, in FP32 and in the reduced precision.

A call is one or more nodes of autograd's graph, between its results and its arguments; hooks on the outermost of them
see the gradients that come in and those that go out. FP32's are kept as samples until the reduced ones arrive.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from amp_doctor.probe.compare import Compared
from amp_doctor.probe.dryrun_autocast import AUTOCAST, key
from amp_doctor.probe.dryrun_kernels import HALF
from amp_doctor.probe.nested import tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

# Elements of one gradient that are compared: so many, and fewer when samples of so many elements are kept already.
_SAMPLE, _FEWER = 1 << 14, 1 << 10
_ENOUGH = 1 << 26
# Nodes of autograd's graph that one call may consist of.
_NODES = 2000
# CUDA's rules hold in the backward pass, and not for what measures it.
_RULES = key(AUTOCAST) | key(HALF)


@dataclass(slots=True)
class Flow:
    """Gradients of one call: `given` with respect to its results, `made` with respect to its arguments.

    In true units, the loss scale taken out. `half` is the largest magnitude in FP32 of those that FP16 has to hold.
    """

    given: list[Compared] = field(default_factory=list)
    made: list[Compared] = field(default_factory=list)
    half: float = 0.0


@dataclass(frozen=True, slots=True)
class Edge:
    """Where an argument enters autograd's graph, and the form its gradient will be given."""

    place: int
    dtype: torch.dtype
    shape: torch.Size


class Watch:
    """Sets the hooks, call by call, and has the flows when the backward passes are over."""

    def __init__(self, scale: float) -> None:
        self.flows: dict[fx.Node, Flow] = {}
        # The largest gradient in FP32 of a scalar that is float16: the loss scale multiplies nothing that is larger.
        self.scalar = 0.0
        self._scale = scale
        # (call, "given" or "made", place) -> FP32's samples, one per backward pass that went through: values, their
        # distance in the gradient, and its largest magnitude.
        self._wide: dict[tuple[fx.Node, str, int], list[tuple[Tensor, int, float]]] = {}
        self._kept = 0
        self._deaf = False
        self._met: dict[tuple[fx.Node, str, int], int] = {}

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Inside, gradients are not those of the step."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False

    def arguments(self, args: Any) -> dict[Any, Edge]:
        """The edges by which a call's arguments hang together with what came before; ask before the call."""
        if not torch.is_grad_enabled():
            return {}
        return {
            (edge.node, edge.output_nr): Edge(place, tensor.dtype, tensor.shape)
            for place, tensor in enumerate(tensors(args))
            if tensor.requires_grad
            for edge in (get_gradient_edge(tensor),)
        }

    def call(self, node: fx.Node, edges: dict[Any, Edge], result: Any, *, wide: bool) -> None:
        """Listen to the backward of a call that was made."""
        if not edges:
            return
        waiting = []
        for place, tensor in enumerate(tensors((result,))):
            if tensor.requires_grad and tensor.grad_fn is not None:
                function, number = tensor.grad_fn, tensor.output_nr
                if (function, number) in edges:
                    return  # handed through

                def enters(grads: Any, number: int = number, place: int = place) -> None:
                    half = getattr(grads[number], "dtype", None) is torch.float16
                    self._see(node, "given", place, grads[number], wide=wide, half=half)

                function.register_prehook(enters)
                waiting.append(function)
        seen = set(waiting)
        while waiting and len(seen) < _NODES:
            function = waiting.pop()
            for index, (above, number) in enumerate(function.next_functions):
                edge = edges.get((above, number)) or _cast_of(above, edges)
                if edge is not None:

                    def leaves(grads: Any, _: Any, index: int = index, edge: Edge = edge) -> None:
                        half = torch.float16 in (edge.dtype, getattr(grads[index], "dtype", None))
                        self._see(node, "made", edge.place, _formed(grads[index], edge), wide=wide, half=half)

                    function.register_hook(leaves)
                elif above is not None and above not in seen:
                    seen.add(above)
                    waiting.append(above)

    def _see(
        self, node: fx.Node, side: str, place: int, grad: Tensor | None, *, wide: bool, half: bool = False
    ) -> None:
        if self._deaf or grad is None or grad.layout is not torch.strided or not grad.numel() or grad.is_complex():
            return
        site = (node, side, place)
        with torch._C._ExcludeDispatchKeyGuard(_RULES), torch.no_grad():
            grad = grad.detach()
            if wide:
                low, high = (float(limit) for limit in torch.aminmax(grad))
                most = _SAMPLE if self._kept < _ENOUGH else _FEWER
                stride = 1 if grad.numel() <= most else 2 * (grad.numel() // (2 * most)) + 1
                sample = _sample(grad, stride).clone()
                self._kept += sample.numel()
                self._wide.setdefault(site, []).append((sample, stride, max(-low, high)))
                return
            number = self._met[site] = self._met.get(site, -1) + 1
            kept = self._wide.get(site, ())
            if number < len(kept):
                flow = self.flows.setdefault(node, Flow())
                found = self._compared(*kept[number], grad)
                if found is not None:
                    (flow.made if side == "made" else flow.given).append(found)
                    if half and side == "made":
                        flow.half = max(flow.half, found.amax)
                    if half and grad.numel() == 1:
                        self.scalar = max(self.scalar, found.amax)

    def _compared(self, wide: Tensor, stride: int, amax: float, low: Tensor) -> Compared | None:
        broken = 0
        if isfinite(amax) and not isfinite(float(low.sum(dtype=torch.float64))):
            broken = int((~low.isfinite()).sum())
        sample = _sample(low, stride).double()
        if sample.shape != wide.shape or not isfinite(amax):
            return None
        filled = wide != 0
        lost = int(((sample == 0) & filled).sum()) / max(1, int(filled.sum()))
        exact = wide.double()
        if broken:
            good = sample.isfinite()
            exact, sample = exact[good], sample[good]
        norm = float(exact.norm())
        error = float((sample / self._scale - exact).norm()) / norm if norm else 0.0
        return Compared(amax, broken / low.numel(), lost, error, broken)


def _cast_of(function: Any, edges: dict[Any, Edge]) -> Edge | None:
    """The edge of a parameter that autocast has cast: calls share the copy, and what is a call's own ends there."""
    if function is None or function.name() != "ToCopyBackward0":
        return None
    return next((edges[one] for one in function.next_functions if one in edges), None)


def _formed(grad: Tensor | None, edge: Edge) -> Tensor | None:
    """As autograd hands it on: summed over dimensions that were broadcast, in the dtype of the argument."""
    if grad is None or grad.layout is not torch.strided:
        return None
    with torch._C._ExcludeDispatchKeyGuard(_RULES), torch.no_grad():
        if grad.shape != edge.shape:
            grad = grad.sum_to_size(edge.shape)
        return grad.to(edge.dtype)


def _sample(values: Tensor, stride: int) -> Tensor:
    flat = values.reshape(-1)
    return flat if stride == 1 else flat[::stride]
