"""What of a recorded step's gradients arrives as zero under several loss scales, layer by layer, as layers are counted.

The histogram of a layer says what a cast would lose of its own gradients. In a backward pass in FP16 they are made of
gradients that were rounded before, and of which some were lost: so more of them vanishes, or less where what was
rounded up goes on. Hence a recorded step is sent back once more for each scale.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import isfinite, log2
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.diagnosis.profile import ACTIVATION_GRAD, WEIGHT_GRAD
from amp_doctor.numerics.formats import FP16
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.probe.count import Tally, countable
from amp_doctor.probe.dryrun_autocast import AUTOCAST, key
from amp_doctor.probe.dryrun_kernels import HALF
from amp_doctor.probe.graph_calls import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from amp_doctor.probe.precisions import Rules

    # Layer and role.
    Place = tuple[str, str]

# Elements that are looked at.
_MOST = 1 << 22
# Where fewer gradients than this are subnormal in every layer, a backward pass would tell nothing new.
_FEW = 0.01
# Shares that differ by less are the same.
_SAME = 0.002
_RULES = key(AUTOCAST) | key(HALF)


@dataclass(frozen=True, slots=True)
class Arrived:
    """The gradients of a place in FP32, and how many of them were zeros when they arrived in FP16."""

    wide: ExponentHistogram = field(default_factory=ExponentHistogram)
    zeros: int = 0

    def __add__(self, other: Arrived) -> Arrived:
        return Arrived(self.wide + other.wide, self.zeros + other.zeros)


@dataclass(slots=True)
class _Seen:
    """Of one place: all elements in FP32, and under each scale how many have arrived and how many of them as zeros."""

    wide: Tally = field(default_factory=Tally)
    low: dict[float, list[int]] = field(default_factory=dict)
    half: bool = False


class Zeros:
    """Sends a step back under each of `scales`, and counts; all that, or nothing by `deadline` (`time.monotonic()`)."""

    def __init__(self, scales: Sequence[float], rules: Rules, deadline: float | None) -> None:
        self._scales, self._rules, self._deadline = scales, rules, deadline
        # Those of them that may lose something: chosen when FP32's gradients are known.
        self._chosen: list[float] | None = None
        self._seen: dict[Place, _Seen] = {}
        self._leaves: list[tuple[Place, Tensor, Tensor]] = []
        # The pass under way: none, FP32's (0), or the scale of a reduced one.
        self._pass: float | None = None
        self._whole = True

    def leaf(self, node: fx.Node, wide: Tensor, low: Tensor) -> None:
        """A parameter, in both precisions."""
        layer = node.meta.get("site")
        if self._scales and layer is not None and wide.requires_grad and low.requires_grad:
            self._leaves.append(((layer, WEIGHT_GRAD), wide, low))

    def output(self, node: fx.Node, result: Any, *, wide: bool) -> None:
        """What a call gave, in one precision; it matters when a module has returned it."""
        layer = node.meta.get("site")
        if not self._scales or layer is None or not isinstance(result, Tensor) or result.grad_fn is None:
            return
        place, number, half = (layer, ACTIVATION_GRAD), result.output_nr, result.dtype is torch.float16

        def arrives(grads: Any) -> None:
            if self._pass is not None and (self._pass == 0) == wide:
                self._count(place, grads[number], half=half)

        result.grad_fn.register_prehook(arrives)

    @property
    def wanted(self) -> bool:
        """Whether there are passes to be made."""
        return bool(self._scales) and self._whole

    def send_back(self, wide: Sequence[Tensor], low: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """After the backward pass that the step made: one in FP32, and one for each scale that may lose something."""
        if not self.wanted:
            return
        try:
            self._back(0.0, wide, [one.detach().to(root.dtype) for one, root in zip(gradients, wide, strict=True)])
            if self._chosen is None:
                self._chosen = [scale for scale in self._scales if self._matters(scale)]
            for scale in self._chosen:
                scaled = [one.detach().float() * scale for one in gradients]
                self._back(scale, low, [one.to(root.dtype) for one, root in zip(scaled, low, strict=True)])
        except Exception:  # noqa: BLE001 - time is up, or a backward of the script's own is made for one pass only
            self._whole = False
        finally:
            self._pass = None

    def arrived(self) -> dict[tuple[Place, float], Arrived]:
        """What was counted, by place and scale, of parameters and of outputs in half."""
        if not self._whole:
            return {}
        found = {}
        for place, seen in self._seen.items():
            counts = seen.wide.histogram()
            for scale, (elements, zeros) in seen.low.items():
                # A pass that did not get everywhere says nothing.
                if elements == counts.elements and (place[1] == WEIGHT_GRAD or seen.half):
                    found[place, scale] = Arrived(counts, zeros)
        return found

    def _back(self, scale: float, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise OutOfTime
        self._pass = scale
        known = [(place, wide if scale == 0 else low) for place, wide, low in self._leaves]
        # A region of autocast does not last into the backward pass.
        with self._rules.on() if scale else nullcontext(), torch._C._ExcludeDispatchKeyGuard(key(AUTOCAST)):
            found = torch.autograd.grad(
                list(roots), [leaf for _, leaf in known], gradients, retain_graph=True, allow_unused=True
            )
        for (place, _), gradient in zip(known, found, strict=True):
            self._count(place, gradient, half=False)
        self._pass = None

    def _matters(self, scale: float) -> bool:
        counts = (seen.wide.histogram() for seen in self._seen.values())
        return any(one.lost(FP16, scale) + one.subnormal(FP16, scale) > _FEW for one in counts)

    def _count(self, place: Place, gradient: Tensor | None, *, half: bool) -> None:
        values = countable(gradient)
        if values is None or self._pass is None:
            return
        if values.numel() > _MOST:
            # An odd stride; the same elements in every pass, in memory of their own, which is small.
            values = values.reshape(-1)[:: 2 * (values.numel() // (2 * _MOST)) + 1].contiguous()
        seen = self._seen.setdefault(place, _Seen())
        with torch._C._ExcludeDispatchKeyGuard(_RULES), torch.no_grad():
            if self._pass == 0:
                seen.wide.add(values)
                return
            seen.half |= half
            low = seen.low.setdefault(self._pass, [0, 0])
            low[0] += values.numel()
            low[1] += values.numel() - int(torch.count_nonzero(values))


def as_at(steps: Iterable[Mapping[tuple[Place, float], Arrived]]) -> dict[Place, dict[float, float]]:
    """Place -> loss scale -> the one at which a cast loses as much as was lost in these steps, where that is another.

    0 where everything was lost, infinity where nothing was.
    """
    total: dict[tuple[Place, float], Arrived] = {}
    for step in steps:
        for at, one in step.items():
            total[at] = total.get(at, Arrived()) + one
    found: dict[Place, dict[float, float]] = {}
    for (place, scale), one in total.items():
        if one.wide.nonzero:
            lost = min(max((one.zeros - one.wide.zeros) / one.wide.nonzero, 0.0), 1.0)
            if abs(lost - one.wide.lost(FP16, scale)) > _SAME:
                found.setdefault(place, {})[scale] = _scale_that_loses(one.wide, lost)
    return found


def _scale_that_loses(counts: ExponentHistogram, share: float) -> float:
    if share in (0.0, 1.0):
        return 0.0 if share else float("inf")
    low, high = (log2(FP16.zero_threshold / one) for one in (counts.amax, counts.amin))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if counts.lost(FP16, 2.0**middle) > share else (low, middle)
    return float(2.0**high) if isfinite(high) else 1.0
