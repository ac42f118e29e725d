"""Replays under a loss scale that fits, and the operators that must stay in FP32, found by trying."""

from __future__ import annotations

from math import floor, isfinite, log2
from typing import TYPE_CHECKING

import torch

from amp_doctor.numerics.formats import FP16
from amp_doctor.probe.graph_calls import OutOfTime
from amp_doctor.probe.replay import Replayed, replay
from amp_doctor.probe.troubles import PRECISION, Trouble, place, troubles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.probe.precisions import Precision
    from amp_doctor.probe.recorded import Recording

# What a GradScaler begins with; and the most that a loss in half can be multiplied by.
SCALE = 65536.0
_SCALE_OF_HALF = 32768.0
# Inside an operator gradients may be larger than those that leave it: one more try, so much lower.
_STEP = 16
# So far may the gradients of a step, and its loss, be from FP32's.
TOLERANCE = 0.1
# So many troubled operators are tried in FP32.
_TRIED = 8


def scaled(
    recording: Recording,
    precision: Precision,
    deadline: float,
    exempt: frozenset[str] = frozenset(),
    scale: float = SCALE,
) -> Replayed:
    """The replay under `scale`, or under the largest below it at which the gradients are finite, or under 1."""
    if precision.low is torch.bfloat16:
        return replay(recording, precision, exempt=exempt, deadline=deadline)
    first = scale if precision.weights is None else min(scale, _SCALE_OF_HALF)
    result = replay(recording, precision, exempt=exempt, scale=first, deadline=deadline)
    fitting = _fitting(result)
    for smaller in (fitting, fitting / _STEP, 1.0):
        if _finite(result) or result.scale <= smaller:
            break
        result = replay(recording, precision, exempt=exempt, scale=smaller, deadline=deadline)
    return result


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
    overflow = any(one.trouble != PRECISION and one.rank >= 1 for one in troubles(replayed))
    losses = all(abs(wide - low) <= TOLERANCE * max(abs(wide), 1e-8) for wide, low in replayed.losses)
    return not overflow and losses and replayed.gradient_error <= TOLERANCE


def kept(
    recording: Recording, replayed: Replayed, found: Sequence[Trouble], deadline: float, scale: float = SCALE
) -> tuple[Trouble, ...] | None:
    """The fewest of the troubled operators that bring the step back when they are in FP32; None when not all do.

    Those that are not needed are given up one by one; when time is up, those that are left stay. OutOfTime when not
    even all together could be tried.
    """
    if within(replayed):
        return ()
    groups = [(one, _alike(one, replayed)) for one in found[:_TRIED]]

    def helps(chosen: list[tuple[Trouble, frozenset[str]]]) -> bool:
        names = frozenset().union(*(names for _, names in chosen))
        return within(scaled(recording, replayed.precision, deadline, names, scale))

    if not groups or not helps(groups):
        return None
    try:
        for one in reversed(groups[:]):
            fewer = [other for other in groups if other is not one]
            if fewer and helps(fewer):
                groups = fewer
    except OutOfTime:
        pass
    return tuple(one for one, _ in groups)


def _alike(trouble: Trouble, replayed: Replayed) -> frozenset[str]:
    """The calls of the same function on the same line of the same layer."""
    wanted = place(trouble.node)
    return frozenset(one.node.name for one in replayed.nodes if place(one) == wanted)
