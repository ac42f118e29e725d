"""What the replays of one recorded step come to: the operators that go wrong, and what must stay in FP32."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.probe.dtypes import LOW
from amp_doctor.probe.precisions import O1_BF16, O1_FP16, O3_FP16, WRITTEN, Precision
from amp_doctor.probe.replay import OutOfTime, Replayed, name_of, replay
from amp_doctor.probe.troubles import OVERFLOW, PRECISION, UNDERFLOW, Trouble, operators, troubles

if TYPE_CHECKING:
    from torch import fx

    from amp_doctor.diagnosis.profile import Operator
    from amp_doctor.probe.recorded import Recording

# Loss scales to try, until no gradient is infinite.
_SCALES = (65536.0, 256.0, 1.0)
# So far may the gradients of a step, and its loss, be from FP32's.
TOLERANCE = 0.1
_MOST = 20
# So many operators of O3 are told beside those of O1.
_MOST_O3 = 6


@dataclass(frozen=True, slots=True)
class Examined:
    """`operators` are the worst of all precisions; `kept` are those of O1 in FP16 that must stay in FP32.

    `kept` is the smallest set found by trying, None when not even all troubled operators in FP32 help, and empty when
    the step is within the tolerance as it is.
    """

    operators: tuple[Operator, ...] = ()
    kept: tuple[Operator, ...] | None = ()
    replays: tuple[Replayed, ...] = ()
    notes: tuple[str, ...] = ()


def examine(recording: Recording, seconds: float) -> Examined:
    """Replay under O1 in both dtypes, under O3, and as written, for at most so many seconds."""
    if not recording.losses:
        return Examined()
    if not recording.exact:
        return Examined(notes=("the recorded step was not replayed: its inputs were too large to be kept",))
    deadline = time.monotonic() + seconds
    told: list[Operator] = []
    replays: list[Replayed] = []
    kept: tuple[Operator, ...] | None = ()
    try:
        for precision in (O1_FP16, WRITTEN, O3_FP16, O1_BF16):
            if precision is WRITTEN and not _half_of_its_own(recording):
                continue
            if precision is O1_FP16:
                replayed = scaled(recording, precision, deadline)
            else:
                replayed = replay(recording, precision, backward=False, deadline=deadline)
            replays.append(replayed)
            found = troubles(replayed)
            told += _new(told, operators(replayed, found), precision)
            if precision is O1_FP16:
                kept = _kept(recording, replayed, found, deadline)
    except OutOfTime:
        return Examined(tuple(told[:_MOST]), kept, tuple(replays), _LATE)
    return Examined(tuple(told[:_MOST]), kept, tuple(replays))


_LATE = ("the recorded step was not replayed under every precision: time was up",)


def scaled(
    recording: Recording, precision: Precision, deadline: float, exempt: frozenset[str] = frozenset()
) -> Replayed:
    """The replay under the largest loss scale at which the gradients are finite."""
    first, *others = _SCALES
    result = replay(recording, precision, exempt=exempt, scale=first, deadline=deadline)
    for scale in others:
        if isfinite(result.gradient_error):
            break
        result = replay(recording, precision, exempt=exempt, scale=scale, deadline=deadline)
    return result


def within(replayed: Replayed) -> bool:
    """Whether the step came out as in FP32: no overflow, the loss and the gradients within the tolerance."""
    overflow = any(one.trouble != PRECISION and one.rank >= 1 for one in troubles(replayed))
    losses = all(abs(wide - low) <= TOLERANCE * max(abs(wide), 1e-8) for wide, low in replayed.losses)
    return not overflow and losses and replayed.gradient_error <= TOLERANCE


def _kept(
    recording: Recording, replayed: Replayed, found: tuple[Trouble, ...], deadline: float
) -> tuple[Operator, ...] | None:
    """Troubled operators whose exemption, together, brings the step back; those that are not needed are given up."""
    if within(replayed):
        return ()
    groups = [(one, _alike(one, replayed)) for one in found[:8]]

    def helps(chosen: list[tuple[Trouble, frozenset[str]]]) -> bool:
        names = frozenset().union(*(names for _, names in chosen))
        return within(scaled(recording, O1_FP16, deadline, names))

    if not groups or not helps(groups):
        return None
    for one in reversed(groups[:]):
        fewer = [other for other in groups if other is not one]
        if fewer and helps(fewer):
            groups = fewer
    return operators(replayed, [one for one, _ in groups])


def _alike(trouble: Trouble, replayed: Replayed) -> frozenset[str]:
    """The calls of the same function on the same line of the same layer."""

    def place(node: fx.Node) -> tuple[object, ...]:
        return name_of(node), node.meta.get("layer"), node.meta.get("source")

    wanted = place(trouble.node.node)
    return frozenset(one.node.name for one in replayed.nodes if place(one.node) == wanted)


def _half_of_its_own(recording: Recording) -> bool:
    return any(node.meta.get("dtype") in LOW for node in recording.graph_module.graph.nodes)


def _new(told: list[Operator], found: tuple[Operator, ...], precision: Precision) -> list[Operator]:
    """What no earlier precision has told of the same line; of O3, where most things go wrong, the worst."""
    known = {(one.operator, one.source, one.trouble) for one in told}
    new = [one for one in found if (one.operator, one.source, one.trouble) not in known]
    if precision is O1_BF16:
        # What is refused there mixes dtypes, as it does in float16.
        return [one for one in new if one.trouble in (OVERFLOW, UNDERFLOW, PRECISION)]
    if precision is O3_FP16:
        return [one for one in new if one.trouble == OVERFLOW or one.lost > 0.1 or one.error > TOLERANCE][:_MOST_O3]
    return new
