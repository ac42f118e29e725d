"""A session's recorded step, replayed when the run has ended.

It is the second one, since the first may set things up; but the first, from its first forward pass on, where that met a
NaN or an infinity: the weights of the second are broken then.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from torch.overrides import _get_current_function_mode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from amp_doctor.diagnosis.profile import Replay
from amp_doctor.numerics.formats import tellable
from amp_doctor.probe.further import Further
from amp_doctor.probe.recordable import OTHER_RANK, Alone, ranks, unrecordable
from amp_doctor.probe.traces import INSTALLED
from amp_doctor.probe.troubles import BESIDE

if TYPE_CHECKING:
    from torch import Tensor

    from amp_doctor.diagnosis.profile import Operator, Profile, Source
    from amp_doctor.probe.examine import Examined
    from amp_doctor.probe.names import Record
    from amp_doctor.probe.record import Recorder
    from amp_doctor.probe.replayed import Replayed
    from amp_doctor.probe.session import Session

# Counted from 0.
_STEP = 1
# Ends after which there is time for a replay, of so many seconds, or of a share of what the run took.
_ENDS = ("steps", "finished")
_SECONDS = 10.0
_SHARE = 1.0
_MOST = 60.0
# Other ranks wait for the first to come to its end.
_MOST_OF_RANKS = 20.0
_OPERATORS = 20
# The precision that stands for an opt level.
_LEVELS = frozenset(("O1/float16", "O2/float16", "O3/float16"))


class Replaying:
    """Starts and stops the recorder between steps; whatever fails becomes a note."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder: Recorder | None = None
        self._recorded: Recorder | None = None
        self._further = Further(session)
        self._reason = "the run ended before its first step was over"

    def step_ends(self) -> None:
        """The step under way is over: if it was recorded, that was it."""
        if self._recorder is None:
            return
        over, self._recorder = self._recorder, None
        over.cancel()
        if self._recorded is None:
            self._recorded = over
        else:
            self._further.add(over)

    def first_forward(self) -> None:
        """A forward pass of the first step begins."""
        begun = self._recorder is not None or self._recorded is not None
        self.leave()
        # A mode of the script's that is entered now and left before the step ends would take ours with it; but a
        # default device (torch.set_default_device) lies below all others, whenever it is set or taken away.
        entered = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]
        if not begun and not entered and not unrecordable(self._session):
            self._start()

    def step_begins(self) -> None:
        """Another step begins."""
        session = self._session
        if session.step != _STEP or session.device is None:
            if session.step > _STEP and self._further.wanted(self._recorded):
                self._start()
            return
        if self._recorded is not None and session.nonfinite.broken:
            return
        if self._further.wanted(self._recorded):
            self._further.add(self._recorded)
        self._recorded = None
        self._reason = unrecordable(session)
        if self._reason:
            if self._reason != OTHER_RANK:
                session.note(f"no step was recorded and replayed: {self._reason}")
            return
        self._start()

    def returned(self, tensor: Tensor, layer: Record) -> None:
        """A module has given this tensor, whose gradient is counted."""
        if self._recorder is not None:
            self._recorder.tape.returned(tensor, layer)

    def optimizer_begins(self, *, closure: bool) -> None:
        """An optimizer begins its step: only a closure makes calls that belong to the recorded step."""
        if self._recorder is not None and not closure:
            self._recorder.pause()

    def optimizer_ends(self) -> None:
        """It has stepped."""
        if self._recorder is not None:
            self._recorder.resume()

    def stop(self) -> None:
        """The run is over; a step that was not finished is no step."""
        if self._recorder is not None:
            self._recorder.cancel()
            self._recorder = None

    def _start(self) -> None:
        session = self._session
        with session.guard("operators of a recorded step"):
            from amp_doctor.probe.record import Recorder

            self._recorder = Recorder(
                session.names, hidden=lambda: session.steps.stepping, inside=lambda: session.scalers.inside
            )
            self._recorder.start()

    @staticmethod
    def leave() -> None:
        """Take recorders from the top of torch's stack of modes that are over, those of earlier sessions too."""
        while getattr(mode := _get_current_function_mode(), "cancelled", False):
            mode.__exit__(None, None, None)

    def replayed(self, profile: Profile) -> Profile:
        """The profile with the operators that the replays have found."""
        session, recorder = self._session, self._recorded
        self._recorded = None
        if self._reason == OTHER_RANK:
            return profile
        if recorder is None:
            return replace(profile, replay=Replay(recorded=False, reason=self._reason))
        if profile.ended not in _ENDS:
            return replace(profile, replay=Replay(recorded=False, reason=f"how the run ended: {profile.ended}"))
        notes: list[str] = []
        try:
            from amp_doctor.probe.examine import examine

            began, active = time.perf_counter(), session.active
            session.active = False
            several = ranks() > 1
            try:
                recording = recorder.stop()
                most = _MOST_OF_RANKS if several else _MOST
                seconds = min(most, max(_SECONDS, _SHARE * profile.seconds))
                with Alone() if several else nullcontext():
                    own = "bfloat16" in profile.precision.autocast
                    examined = examine(recording, seconds, _scale(profile), bfloat16=own)
                    layers = self._further.layers(profile, examined)
            finally:
                session.active = active
            notes += [*recording.notes, *examined.notes]
            profile = replace(
                profile,
                operators=_joined(profile.operators, examined.operators),
                layers=layers,
                replay=_summary(examined),
                seconds=round(profile.seconds + time.perf_counter() - began, 3),
            )
        except Exception as error:  # noqa: BLE001 - the profile is worth having without it
            words = str(error).split("\n")[0]  # fx adds where it stood
            notes.append(f"the recorded step could not be replayed: {type(error).__name__}: {words}")
            profile = replace(profile, replay=Replay(recorded=False, reason=notes[-1]))
        return replace(profile, notes=(*profile.notes, *(one for one in notes if one not in profile.notes)))


def _joined(seen: tuple[Operator, ...], replayed: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Those seen to overflow in any step, and those of the one that was replayed; of both, the larger magnitude."""
    largest = {(one.operator, one.source): one for one in seen}
    joined = []
    for one in replayed:
        met = largest.pop((one.operator, one.source), None) if _overflows(one) and one.phase == "forward" else None
        joined.append(replace(one, amax=max(one.amax, met.amax, key=tellable)) if met is not None else one)
    first = [one for one in joined if _overflows(one) and one.precision.startswith("O1")]
    rest = [one for one in joined if one not in first]
    return (*first, *largest.values(), *rest)[:_OPERATORS]


def _overflows(one: Operator) -> bool:
    return one.trouble in ("overflow", "accumulation")


def _summary(examined: Examined) -> Replay:
    """The numbers of O1 in float16, the bytes of every opt level, and the precisions side by side."""
    from amp_doctor.probe.gains import gains

    if not examined.replays:
        return Replay(exact=examined.exact, recorded=False, reason=examined.notes[0])
    found = {one.precision.name: gains(one) for one in examined.replays}
    first, outcome = found[examined.replays[0].precision.name], examined.outcomes[0]
    levels = {name[:2]: one.activations for name, one in found.items() if name in _LEVELS}
    return Replay(
        outcome.loss_error,
        outcome.gradient_error or 0.0,
        first.casts,
        first.flops,
        first.tensor_cores,
        first.aligned,
        first.speed,
        first.assumptions,
        tuple(map(_called, examined.kept or ())),
        examined.exact,
        {"O0": first.activations_fp32, **levels},
        examined.outcomes,
        lines=_lines(examined.replays[0]),
    )


def _called(one: Operator) -> str:
    """Layer and operator; one that no finding tells of with its line."""
    name = f"{one.layer}: {one.operator}" if one.layer else one.operator
    if one.trouble != BESIDE or one.source is None:
        return name
    return f"{name} at {PurePath(one.source.path).name}:{one.source.line}"


def _lines(replayed: Replayed) -> tuple[Source, ...]:
    """Where the operators of the step stand, in files of the user's own: nobody lints the others."""
    met: set[Source] = {source for one in replayed.nodes if (source := one.node.meta.get("source"))}
    own = (one for one in met if not one.path.startswith(INSTALLED))
    return tuple(sorted(own, key=lambda one: (one.path, one.line)))


def _scale(profile: Profile) -> float:
    """The loss scale in force when the run ended, or the recommended one where nothing was scaled; at least 1."""
    from amp_doctor.diagnosis.recommend import recommend
    from amp_doctor.probe.keeping import SCALE

    good = [event.scale for event in profile.scaler if not event.found_inf]
    if good:
        return max(1.0, good[-1])
    advised = recommend(profile).loss_scale
    return max(1.0, (advised.init_scale if advised.needed else None) or SCALE)
