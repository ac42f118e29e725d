"""A session's recorded step: the second one is recorded, and replayed when the run has ended."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from amp_doctor.diagnosis.profile import Replay
from amp_doctor.probe.device_count import on_host

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Operator, Profile
    from amp_doctor.probe.examine import Examined
    from amp_doctor.probe.record import Recorder
    from amp_doctor.probe.session import Session

# The step that is recorded, counted from 0: the first has set everything up.
_STEP = 1
# Ends after which there is time for a replay, of so many seconds, or of a share of what the run took.
_ENDS = ("steps", "finished")
_SECONDS = 5.0
_SHARE = 0.5
_MOST = 60.0
_OPERATORS = 20


class Replaying:
    """Starts and stops the recorder between steps; whatever fails becomes a note."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder: Recorder | None = None
        self._recorded: Recorder | None = None

    def step_ends(self) -> None:
        """The step under way is over: if it was recorded, that was it."""
        if self._recorder is not None:
            self._recorded, self._recorder = self._recorder, None
            self._recorded.cancel()

    def step_begins(self) -> None:
        """Another step begins."""
        session = self._session
        if session.step != _STEP or session.device is None or not on_host(session.device) or _distributed():
            return
        with session.guard("operators of a recorded step"):
            from amp_doctor.probe.record import Recorder

            self._recorder = Recorder(session.names, hidden=lambda: session.steps.stepping)
            self._recorder.start()

    def stop(self) -> None:
        """The run is over; a step that was not finished is no step."""
        if self._recorder is not None:
            self._recorder.cancel()
            self._recorder = None

    def replayed(self, profile: Profile) -> Profile:
        """The profile with the operators that the replays have found."""
        session, recorder = self._session, self._recorded
        self._recorded = None
        if recorder is None or profile.ended not in _ENDS:
            return profile
        notes: list[str] = []
        try:
            from amp_doctor.probe.examine import examine

            began, active = time.perf_counter(), session.active
            session.active = False
            try:
                recording = recorder.stop()
                examined = examine(recording, min(_MOST, max(_SECONDS, _SHARE * profile.seconds)))
            finally:
                session.active = active
            notes += [*recording.notes, *examined.notes]
            profile = replace(
                profile,
                operators=_joined(profile.operators, examined.operators),
                replay=_summary(examined),
                seconds=round(profile.seconds + time.perf_counter() - began, 3),
            )
        except Exception as error:  # noqa: BLE001 - the profile is worth having without it
            notes.append(f"the recorded step could not be replayed: {type(error).__name__}: {error}")
        return replace(profile, notes=(*profile.notes, *(one for one in notes if one not in profile.notes)))


def _joined(seen: tuple[Operator, ...], replayed: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Those seen to overflow in any step, and those of the one that was replayed; of both, the larger magnitude."""
    largest = {(one.operator, one.source): one for one in seen}
    joined = []
    for one in replayed:
        met = largest.pop((one.operator, one.source), None) if one.trouble == "overflow" else None
        joined.append(replace(one, amax=max(one.amax, met.amax)) if met is not None else one)
    first = [one for one in joined if one.trouble == "overflow" and one.precision.startswith("O1")]
    rest = [one for one in joined if one not in first]
    return (*first, *largest.values(), *rest)[:_OPERATORS]


def _summary(examined: Examined) -> Replay | None:
    """The numbers of O1 in float16."""
    from amp_doctor.probe.gains import gains

    if not examined.replays:
        return None
    first = examined.replays[0]
    found = gains(first)
    errors = [abs(wide - low) / abs(wide) for wide, low in first.losses if wide]
    return Replay(
        max(errors, default=0.0),
        first.gradient_error,
        found.casts,
        found.flops,
        found.tensor_cores,
        found.aligned,
        found.speed,
        found.assumptions,
        tuple(f"{one.layer}: {one.operator}" if one.layer else one.operator for one in examined.kept or ()),
    )


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
