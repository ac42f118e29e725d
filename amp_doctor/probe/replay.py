"""A recorded step in two precisions at once, call by call: FP32, and what a GPU would make of a setting.

Both are given the same random numbers. Half matrix products are computed in FP32 from rounded inputs, the result
rounded, as Tensor Cores do; what else is half is computed by the CPU's kernels for half, which round once as well.
An infinity is mended where it arises, so that what comes after is judged by itself.
"""

from __future__ import annotations

import time
import warnings
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from amp_doctor.probe.accumulation import swallowed, terms_of
from amp_doctor.probe.backward import Edge, Watch
from amp_doctor.probe.calls import generator_at
from amp_doctor.probe.compare import Compared, compare
from amp_doctor.probe.dtypes import LOW, cut, in_dtype, is_low, widened, within_range
from amp_doctor.probe.flops import Flops, recurrent
from amp_doctor.probe.graph_calls import OutOfTime, gives_no_tensor, invoke, last_uses, name_of
from amp_doctor.probe.half_calls import CREATED, DRAWN, beyond, half_call, mixes
from amp_doctor.probe.mending import MASKS, mended
from amp_doctor.probe.nested import tensors
from amp_doctor.probe.positions import collapsed
from amp_doctor.probe.precisions import Precision, Rules
from amp_doctor.probe.replayed import Node, Replayed
from amp_doctor.probe.tape import UNINITIALISED
from amp_doctor.probe.zeros import Zeros

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from amp_doctor.probe.recorded import Recording

_NORMS = frozenset("batch_norm layer_norm group_norm instance_norm rms_norm".split())
_CASTS = frozenset("float half bfloat16 to type type_as".split())
_INDICES = (torch.int64, torch.int32)
_FILLS = MASKS | {"fill_", "full_like"}


def replay(
    recording: Recording,
    precision: Precision,
    *,
    exempt: Collection[str] = (),
    scale: float = 1.0,
    backward: bool = True,
    deadline: float | None = None,
    scales: Sequence[float] = (),
    mend: bool = True,
) -> Replayed:
    """Replay under `precision`, with the calls named in `exempt` in FP32; gradients under the loss scale `scale`.

    `backward=False` leaves the backward passes out, but for gradients that the step itself computes with. Under each of
    `scales` it is counted what arrives as zero, by a backward pass of its own.
    Infinities that FP32 does not have are replaced by its numbers, so that each operator is judged on its own; without
    `mend` they go on as they would. OutOfTime when `time.monotonic()` passes `deadline`.
    """
    rules = Rules(precision)
    run = _Run(recording, precision, rules, frozenset(exempt), scale if backward else None, deadline, scales, mend)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), rules.installed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # half complex numbers are an experiment of torch's, and ours
        return run.all()


class _Run:
    def __init__(
        self,
        recording: Recording,
        precision: Precision,
        rules: Rules,
        exempt: frozenset[str],
        scale: float | None,
        deadline: float | None,
        scales: Sequence[float],
        mend: bool,
    ) -> None:
        self._recording, self._precision, self._rules, self._mend = recording, precision, rules, mend
        self._exempt, self._scale, self._deadline = exempt, scale or 1.0, deadline
        self._with_backward = scale is not None
        self._wide: dict[fx.Node, Any] = {}
        self._low: dict[fx.Node, Any] = {}
        self._losses: list[tuple[float, float]] = []
        self._leaves: list[tuple[str, Tensor, Tensor]] = []
        self._module = recording.graph_module
        self._last = last_uses(self._module.graph)
        self._watch, self._zeros = Watch(self._scale), Zeros(scales, rules, deadline)
        self._masks: set[fx.Node] = set()

    def all(self) -> Replayed:
        found = []
        leaves = iter(self._recording.inputs)
        for node in self._module.graph.nodes:
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise OutOfTime
            if node.op == "placeholder":
                self._leaf(node, next(leaves))
            elif node.op == "get_attr":
                self._wide[node] = self._low[node] = getattr(self._module, node.target)
            elif node.op != "output":
                found.append(self._call(node))
            for dead in self._last.get(node, ()):
                self._wide.pop(dead, None)
                self._low.pop(dead, None)
        calls = tuple(one for one in found if one is not None)
        for one in calls:
            one.flow = self._watch.flows.get(one.node)
        gradients = [(name, _gradient(wide, low, self._scale)) for name, wide, low in self._leaves]
        return Replayed(
            self._precision,
            calls,
            tuple(self._losses),
            tuple((name, one) for name, one in gradients if one is not None),
            self._gradient_error(),
            self._scale,
            self._watch.scalar,
            self._zeros.arrived(),
        )

    def _gradient_error(self) -> float:
        """Over all leaves together: a gradient that is zero but for rounding has no relative error of its own."""
        wrong = right = 0.0
        for _, wide, low in self._leaves:
            if wide.grad is not None and low.grad is not None:
                right += float(wide.grad.double().square().sum())
                wrong += float((low.grad.double() / self._scale - wide.grad.double()).square().sum())
        return sqrt(wrong / right) if right and isfinite(wrong) else inf if not isfinite(wrong) else 0.0

    def _leaf(self, node: fx.Node, leaf: Any) -> None:
        wide, low = leaf.fresh(), leaf.fresh()
        if wide.dtype in LOW:
            wide = wide.detach().float().requires_grad_(wide.requires_grad)
        to = self._precision.weights
        # A number of nobody's is no part of the model: a loss scale, the target of a loss.
        belongs = leaf.path or leaf.requires_grad or low.dim() > 0
        if to is not None and low.dtype is torch.float32 and belongs and not self._of_norm(node):
            low = low.detach().to(to).requires_grad_(low.requires_grad)
        self._wide[node], self._low[node] = wide, low
        if leaf.requires_grad:
            self._leaves.append((node.name, wide, low))
            self._zeros.leaf(node, wide, low)

    def _call(self, node: fx.Node) -> Node | None:
        name = name_of(node)
        if name in ("_set_grad_enabled", "set_rng_state"):
            invoke(node, *self._given(node, self._wide))
            return None
        if gives_no_tensor(node):
            for values in (self._wide, self._low):
                values[node] = invoke(node, *self._given(node, values))
            return None
        if name in ("_enter_autocast", "_exit_autocast"):
            return None  # regions of the script's own: the precision asked for takes their place
        if node.meta.get("backward"):
            self._backward(node)
            return None
        found = Node(node, inputs=tuple(node.all_input_nodes))
        state = torch.default_generator.get_state() if "rng" in node.meta else None
        low_args = self._given(node, self._low)
        # The lowest number of the dtype at hand, as masks have it: under another dtype it is another.
        extremes = self._precision.low if self._fills_half(name, low_args) else torch.float32
        args, kwargs = within_range(widened(self._given(node, self._wide)), extremes)
        edges = self._edges(args, kwargs)
        with Flops() as flops:
            wide = invoke(node, args, kwargs, wide=True)
        if name in _CASTS and isinstance(wide, Tensor) and wide is args[0] and edges:
            wide = wide.view_as(wide)  # a call of its own, as in the reduced precision
        self._watch.call(node, edges, wide, wide=True)
        self._zeros.output(node, wide, wide=True)
        found.flops = flops.total + recurrent(name, args)
        if state is not None:
            torch.default_generator.set_state(state)
        self._wide[node], wide_args, wide_kwargs = wide, args, kwargs
        casts = self._rules.casts
        casts.count, casts.above, casts.below = 0, 0.0, 0.0
        args, kwargs = within_range(low_args, extremes)
        before = terms_of(name, args) if is_low(args) else None
        edges = self._edges(args, kwargs)
        try:
            low = self._reduced(node, args, kwargs)
            self._watch.call(node, edges, low, wide=False)
            self._zeros.output(node, low, wide=False)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            found.refused, found.mixed = str(error).split("\n")[0], mixes((args, kwargs))
            low = cut(in_dtype(wide, self._precision.low if is_low(args) else None))
        found.rerouted = _other_indices((wide_args, wide_kwargs), (args, kwargs))
        found.casts = casts.count
        found.cast = casts.above if name == "scaled_dot_product_attention" else max(casts.above, casts.below)
        own = any(one.target is generator_at for one in found.inputs)
        drawn = name in DRAWN or (name.endswith("_") and len(found.inputs) == 1 + own)
        if (state is not None or own) and drawn and isinstance(low, Tensor):
            low.detach().copy_(wide.detach())  # filled with random numbers: the same ones
        if name in UNINITIALISED:
            # Whatever memory held before is nobody's fault.
            for one in (wide, low):
                one.detach().zero_()
        elif isinstance(low, Tensor) and isinstance(wide, Tensor) and low.is_floating_point():
            found.swallowed = swallowed(before, low) if before is not None else 0.0
            low = self._weighed(found, wide, low)
        self._low[node] = low
        return found

    def _weighed(self, found: Node, wide: Tensor, low: Tensor) -> Tensor:
        """What became of the result; without its infinities, but for those of a mask."""
        found.dtype, found.compared = low.dtype, compare(wide, low)
        found.collapsed = collapsed(wide, low, found.compared.amax)
        if not found.compared.broken or not self._mend:
            return low
        masks = name_of(found.node) in MASKS or not self._masks.isdisjoint(found.inputs)
        meant = 0.0 if found.flops else beyond(found.node.args)
        whole, found.masks = mended(wide, low, masks=masks, product=found.flops > 0, constant=meant > 0)
        self._masks.update((found.node,) if found.masks else ())
        if found.node.meta.get("mutates"):
            return low
        found.mended = not found.masks
        return whole

    def _fills_half(self, name: str, given: Any) -> bool:
        args, kwargs = given
        if name in CREATED:
            return self._precision.weights is not None or kwargs.get("dtype") in LOW
        return name in _FILLS and is_low(args)

    def _edges(self, args: Any, kwargs: Any) -> dict[Any, Edge]:
        return self._watch.arguments((args, kwargs)) if self._with_backward else {}

    def _reduced(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        name, to = name_of(node), self._precision.weights
        if node.name in self._exempt or (self._precision.norms and name in _NORMS):
            cast = name in _CASTS
            result = invoke(node, *widened((args, kwargs), dtypes=cast), wide=cast)
            return in_dtype(result, to) if name in _NORMS and node.name not in self._exempt else result
        if "rng" in node.meta and "dropout" in name:
            # The same elements are dropped, whatever the dtype.
            return in_dtype(invoke(node, *widened((args, kwargs), dtypes=False)), args[0].dtype)
        with self._rules.on(autocast=not node.meta.get("outside")):
            result = half_call(node, args, kwargs, self._precision)
        return in_dtype(result, to) if to is not None and name in CREATED else result

    def _backward(self, node: fx.Node) -> None:
        wide_args, wide_kwargs = self._given(node, self._wide)
        roots = wide_args[0] if isinstance(wide_args[0], (tuple, list)) else [wide_args[0]]
        args, kwargs = self._given(node, self._low)
        lows = args[0] if isinstance(args[0], (tuple, list)) else [args[0]]
        self._losses += [
            (float(wide.detach()), float(low.detach()))
            for wide, low in zip(roots, lows, strict=True)
            if wide.numel() == 1
        ]
        gradients = args[1] if len(args) > 1 else kwargs.get("gradient", kwargs.get("grad_tensors"))
        keep = {key: value for key, value in kwargs.items() if key in ("retain_graph", "create_graph", "inputs")}
        if gradients is None:
            gradients = [torch.ones_like(one) for one in lows]
        elif isinstance(gradients, Tensor):
            gradients = [gradients]
        if self._with_backward:
            # Where it is not given by position, after the roots and their gradients.
            again = {"retain_graph": True} if self._zeros.wanted and len(args) <= 2 else {}
            invoke(node, wide_args, {**wide_kwargs, **again})
            scaled = [one.detach().to(low.dtype) * self._scale for one, low in zip(gradients, lows, strict=True)]
            with self._rules.on(autocast=False):
                torch.autograd.backward(list(lows), scaled, **{**keep, **again})
        with self._watch.deaf():
            self._zeros.send_back(roots, lows, gradients)

    def _given(self, node: fx.Node, values: dict[fx.Node, Any]) -> tuple[Any, Any]:
        def look_up(one: fx.Node) -> Any:
            return values[one]

        return fx.node.map_arg(node.args, look_up), fx.node.map_arg(node.kwargs, look_up)

    def _of_norm(self, node: fx.Node) -> bool:
        return self._precision.norms and any(name_of(user) in _NORMS for user in node.users)


def _other_indices(wide: Any, low: Any) -> bool:
    """Whether the same call reads other whole numbers, as where a router has chosen otherwise."""
    pairs = zip(tensors(wide), tensors(low), strict=False)
    return any(not torch.equal(one, other) for one, other in pairs if one.dtype in _INDICES and other.dtype in _INDICES)


def _gradient(wide: Tensor, low: Tensor, scale: float) -> Compared | None:
    if wide.grad is None or low.grad is None:
        return None
    return compare(wide.grad, low.grad.double() / scale)
