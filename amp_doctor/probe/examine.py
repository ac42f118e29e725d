"""What the replays of one recorded step come to: the operators that go wrong, and what must stay in FP32."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import LOSS_SCALES, Outcome
from amp_doctor.probe.backward_troubles import backward_troubles
from amp_doctor.probe.dtypes import LOW
from amp_doctor.probe.exact import replay_exactly
from amp_doctor.probe.graph_calls import OutOfTime
from amp_doctor.probe.keeping import SCALE, TOLERANCE, kept, scaled
from amp_doctor.probe.precisions import O1_BF16, O1_FP16, O2_FP16, O3_FP16, WRITTEN, Precision
from amp_doctor.probe.replay import replay
from amp_doctor.probe.troubles import (
    COLLAPSE,
    MASK,
    OVERFLOW,
    OVERFLOWS,
    PRECISION,
    UNDERFLOW,
    Trouble,
    operators,
    troubles,
)

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Operator
    from amp_doctor.probe.recorded import Recording
    from amp_doctor.probe.replayed import Replayed

# The order in which there is time for them, the most useful first; what must stay in FP32 is tried out between the two.
_FIRST = O1_FP16
_BEFORE = (WRITTEN, O1_BF16)
_THEN = (O2_FP16, O3_FP16)
# The order in which they are told: what an operator does under a milder setting is told of that one.
_TOLD = (O1_FP16, WRITTEN, O2_FP16, O3_FP16, O1_BF16)
_MOST = 20
# So many operators of O2 and of O3 are told beside those of O1.
_MOST_HALF = 6
_LATE = "the recorded step was not replayed under every precision: time was up"
_TOO_LARGE = "the recorded step was not replayed: its inputs were too large to be kept"
_NO_BACKWARD = "no backward pass was seen in the recorded step"


@dataclass(frozen=True, slots=True)
class Examined:
    """`operators` are the worst of all precisions; `kept` are those of O1 in FP16 that must stay in FP32.

    `kept` is the smallest set found by trying, None when not even all troubled operators in FP32 help or when there was
    no time to try, and empty when the step is within the tolerance as it is. `exact`: whether FP32 gave the same bits
    again. `outcomes` and `replays` are one per precision; when there is none, `notes` begin with the reason.
    """

    operators: tuple[Operator, ...] = ()
    kept: tuple[Operator, ...] | None = ()
    replays: tuple[Replayed, ...] = ()
    notes: tuple[str, ...] = ()
    exact: bool | None = None
    outcomes: tuple[Outcome, ...] = ()


def examine(recording: Recording, seconds: float, scale: float = SCALE, *, bfloat16: bool = False) -> Examined:
    """Replay in FP32, as written, and under O1 in both dtypes, O2 and O3, for at most so many seconds.

    `scale` is the loss scale to begin with; `bfloat16` says that the script itself uses that.
    """
    if not recording.losses:
        return Examined(notes=(_NO_BACKWARD,))
    if not recording.exact:
        return Examined(notes=(_TOO_LARGE,))
    return _Examination(recording, time.monotonic() + seconds, scale, bfloat16=bfloat16).result()


class _Examination:
    def __init__(self, recording: Recording, deadline: float, scale: float, *, bfloat16: bool) -> None:
        self._recording, self._deadline, self._scale, self._bfloat16 = recording, deadline, scale, bfloat16
        self._replays: list[Replayed] = []
        self._found: dict[Precision, tuple[Trouble, ...]] = {}
        self._kept: tuple[Operator, ...] | None = ()
        self._exact: bool | None = None
        self._notes: list[str] = []

    def result(self) -> Examined:
        try:
            self._exact = replay_exactly(self._recording, self._deadline).exact
            self._replay(_FIRST)
            for precision in _BEFORE:
                if precision is not WRITTEN or _half_of_its_own(self._recording):
                    self._try(precision)
            self._keep()
            for precision in _THEN:
                self._try(precision)
        except OutOfTime:
            self._notes.append(_LATE)
        outcomes = tuple(_outcome(one, self._found[one.precision]) for one in self._replays)
        return Examined(self._told(), self._kept, tuple(self._replays), tuple(self._notes), self._exact, outcomes)

    def _try(self, precision: Precision) -> None:
        """One beside the first, which may fail where this CPU cannot compute what a GPU does."""
        try:
            self._replay(precision)
        except RuntimeError as error:
            words = str(error).split("\n")[0][:200]
            self._notes.append(f"the recorded step could not be replayed under {precision.name}: {words}")

    def _replay(self, precision: Precision) -> None:
        scales = sorted({*map(float, LOSS_SCALES), self._scale}) if precision is O1_FP16 else ()
        replayed = scaled(self._recording, precision, self._deadline, scale=self._scale, scales=scales)
        found, backward = troubles(replayed), backward_troubles(replayed)
        if any(one.node.masks and one.trouble == OVERFLOW for one in found):
            # What reads the mask has no gradient but NaN, and hands it on.
            backward = tuple(one for one in backward if one.trouble != OVERFLOW)
        self._found[precision] = tuple(sorted((*found, *backward), key=lambda one: -one.rank))
        self._replays.append(self._unmended(replayed))

    def _unmended(self, replayed: Replayed) -> Replayed:
        """With the losses that the step would end in where infinities were replaced on the way."""
        if not any(one.mended for one in replayed.nodes):
            return replayed
        with suppress(RuntimeError, ValueError, OutOfTime):  # not every call takes a NaN
            whole = replay(self._recording, replayed.precision, backward=False, deadline=self._deadline, mend=False)
            if not all(isfinite(low) for _, low in whole.losses):
                return replace(replayed, losses=whole.losses, gradient_error=inf)
        return replayed

    def _keep(self) -> None:
        """For half of the time that is left: the other precisions want some, too."""
        now = time.monotonic()
        first, deadline = self._replays[0], now + (self._deadline - now) / 2
        try:
            found = kept(self._recording, first, self._found[O1_FP16], deadline, self._scale)
        except OutOfTime:
            found = None
        self._kept = operators(first, found) if found is not None else None

    def _told(self) -> tuple[Operator, ...]:
        """The worst of each precision, of those that no milder one has told of the same line.

        What the script itself uses is told first, and beside what FP16 would do there.
        """
        told: list[Operator] = []
        replays = {one.precision: one for one in self._replays}
        own = (O1_BF16,) if self._bfloat16 else ()
        for precision in (*own, *(one for one in _TOLD if one not in own)):
            if precision in replays:
                found = operators(replays[precision], self._found[precision])
                known = {_title(one) for one in told if one.precision not in [other.name for other in own]}
                told += _worth_telling([one for one in found if _title(one) not in known], precision)
        return tuple(told[:_MOST])


def _title(one: Operator) -> tuple[object, ...]:
    return one.operator, one.source, one.trouble, one.phase


def _worth_telling(found: list[Operator], precision: Precision) -> list[Operator]:
    """Of O2 and O3, where most things go wrong, the worst."""
    if precision is O1_BF16:
        # What is refused there mixes dtypes, as it does in float16.
        return [one for one in found if one.trouble in (*OVERFLOWS, UNDERFLOW, PRECISION, COLLAPSE)]
    if precision in (O2_FP16, O3_FP16):
        worst = (*OVERFLOWS, MASK, COLLAPSE)
        return [one for one in found if one.trouble in worst or one.lost > 0.1 or one.error > TOLERANCE][:_MOST_HALF]
    return found


def _outcome(replayed: Replayed, found: tuple[Trouble, ...]) -> Outcome:
    errors = [abs(wide - low) / abs(wide) if isfinite(low) else inf for wide, low in replayed.losses if wide]
    return Outcome(
        replayed.precision.name,
        max(errors, default=0.0),
        replayed.gradient_error,
        sum(one.trouble in OVERFLOWS and one.rank >= 1 for one in found),
        sum(one.casts for one in replayed.nodes),
        replayed.scale,
        replayed.half_loss,
    )


def _half_of_its_own(recording: Recording) -> bool:
    return any(node.meta.get("dtype") in LOW for node in recording.graph_module.graph.nodes)
