"""Replays under a loss scale that fits, and the operators that must stay in FP32, found by trying."""

from __future__ import annotations

from dataclasses import replace
from math import floor, isfinite, log2
from typing import TYPE_CHECKING, Any

import torch

from amp_doctor.numerics.formats import FP16
from amp_doctor.probe.backward_troubles import backward_troubles
from amp_doctor.probe.graph_calls import OutOfTime
from amp_doctor.probe.replay import replay
from amp_doctor.probe.troubles import BESIDE, BY_OUTCOME, MASK, Trouble, place, troubles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from amp_doctor.probe.precisions import Precision
    from amp_doctor.probe.recorded import Recording
    from amp_doctor.probe.replayed import Node, Replayed

# What a GradScaler begins with; and the most that a loss in half can be multiplied by.
SCALE = 65536.0
_SCALE_OF_HALF = 32768.0
# Inside an operator gradients may be larger than those that leave it: one more try, so much lower.
_STEP = 16
# So far may the gradients of a step, and its loss, be from FP32's.
TOLERANCE = 0.1
# So many troubled operators are tried in FP32 at first; so many times others join them, up to so many in all.
_TRIED = 8
_ROUNDS = 6
_MOST = 20


def scaled(
    recording: Recording,
    precision: Precision,
    deadline: float,
    exempt: frozenset[str] = frozenset(),
    scale: float = SCALE,
    scales: Sequence[float] = (),
) -> Replayed:
    """The replay under `scale`, or under the largest below it at which the gradients are finite, or under 1.

    Under all of `scales` it is counted what arrives as zero.
    """
    if precision.low is torch.bfloat16:
        return replay(recording, precision, exempt=exempt, deadline=deadline)
    first = scale if precision.weights is None else min(scale, _SCALE_OF_HALF)
    result = replay(recording, precision, exempt=exempt, scale=first, deadline=deadline, scales=scales)
    arrived, fitting = result.arrived, _fitting(result)
    for smaller in (fitting, fitting / _STEP, 1.0):
        if _finite(result) or result.scale <= smaller:
            break
        result = replay(recording, precision, exempt=exempt, scale=smaller, deadline=deadline)
    return replace(result, arrived=arrived)


def _finite(replayed: Replayed) -> bool:
    flows = (one.flow for one in replayed.nodes if one.flow is not None)
    return isfinite(replayed.gradient_error) and not any(made.broken for flow in flows for made in flow.made)


def _fitting(replayed: Replayed) -> float:
    """The largest power of two under which no gradient overflows, as FP32 had them."""
    largest = max((one.flow.half for one in replayed.nodes if one.flow is not None), default=0.0)
    if not 0 < largest < FP16.max:
        return 1.0
    return float(min(2.0 ** floor(log2(FP16.max / largest)), replayed.scale / 2))


def within(replayed: Replayed) -> bool:
    """Whether the step came out as in FP32: no overflow, the loss and the gradients within the tolerance."""
    overflow = any(one.trouble not in BY_OUTCOME and one.rank >= 1 for one in troubles(replayed))
    losses = all(abs(wide - low) <= TOLERANCE * max(abs(wide), 1e-8) for wide, low in replayed.losses)
    return not overflow and losses and replayed.gradient_error <= TOLERANCE


def kept(
    recording: Recording, replayed: Replayed, found: Sequence[Trouble], deadline: float, scale: float = SCALE
) -> tuple[Trouble, ...] | None:
    """The fewest operators that bring the step back when they are in FP32; None when no set was found that does.

    It begins with the troubled ones; while they do not do, what goes wrong all the same joins them, or what it reads.
    Those that are not needed are given up one by one, of those that only joined the matrix products first; when time is
    up, those that are left stay. OutOfTime when none has been found by then.
    """
    if within(replayed):
        return ()

    def tried(chosen: Iterable[Trouble]) -> Replayed:
        names = frozenset[str]().union(*(_alike(one, replayed) for one in chosen))
        return scaled(recording, replayed.precision, deadline, names, scale)

    ill = [one for one in found if one.trouble != MASK]
    groups = _healing({place(one.node): one for one in ill[:_TRIED]}, tried)
    order = groups[::-1]
    order.sort(key=lambda one: (one.trouble != BESIDE, not one.node.flops))
    try:
        for one in order:
            fewer = [other for other in groups if other is not one]
            # One of those that go wrong stays, of which the others are told.
            if any(other.trouble != BESIDE for other in fewer) and within(tried(fewer)):
                groups = fewer
    except OutOfTime:
        pass
    return tuple(groups) or None


def _healing(chosen: dict[tuple[Any, ...], Trouble], tried: Callable[[Iterable[Trouble]], Replayed]) -> list[Trouble]:
    """A set that brings the step back, found by growing `chosen`; empty when there is none."""
    for _ in range(_ROUNDS):
        result = tried(chosen.values()) if chosen else None
        if result is None:
            break
        if within(result):
            return list(chosen.values())
        before = len(chosen)
        for one in (*troubles(result), *backward_troubles(result)):
            if place(one.node) not in chosen:
                chosen[place(one.node)] = one
                continue
            for read in _read_by(one.node, result, chosen):
                chosen.setdefault(place(read), Trouble(read, BESIDE, 0.0))
        if not before < len(chosen) <= _MOST:
            break
    return []


def _read_by(one: Node, replayed: Replayed, chosen: Collection[tuple[Any, ...]]) -> list[Node]:
    """The calls nearest above that are not in FP32 yet: from them it has its error, to them it hands its gradient."""
    known = {other.node: other for other in replayed.nodes}
    found: list[Node] = []
    waiting, met = list(one.inputs), set()
    while waiting:
        node = waiting.pop()
        if node in known and node not in met:
            met.add(node)
            if place(known[node]) not in chosen:
                found.append(known[node])
            else:
                waiting += known[node].inputs
    return found


def _alike(trouble: Trouble, replayed: Replayed) -> frozenset[str]:
    """The calls of the same function on the same line of the same layer."""
    wanted = place(trouble.node)
    return frozenset(one.node.name for one in replayed.nodes if place(one) == wanted)
