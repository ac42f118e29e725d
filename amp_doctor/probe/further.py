"""More steps than the one that is replayed: of each batch other gradients vanish, one alone tells too little."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from amp_doctor.diagnosis.precision import in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amp_doctor.diagnosis.profile import Layer, Profile
    from amp_doctor.probe.examine import Examined
    from amp_doctor.probe.record import Recorder
    from amp_doctor.probe.session import Session
    from amp_doctor.probe.zeros import Arrived, Place

_STEPS = 5
# They are kept until the run is over, so their tensors must be few; and their replays may take so many seconds of the
# processor, or a share of what the run took, and on a busy machine so many times that on the clock.
_BYTES = 1 << 25
_SECONDS = 0.75
_SHARE = 0.1
_BUSY = 4


class Further:
    """The recorders of the step before the replayed one, and of those that follow."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorders: list[Recorder] = []

    def wanted(self, before: Recorder | None) -> TypeGuard[Recorder]:
        """Whether steps like the last one, or that one, are of use: counted in FP32, and small."""
        session = self._session
        if before is None or not before.tape.entries or before.tape.bytes > _BYTES or session.nonfinite.broken:
            return False
        if session.settings.every > 1:
            return False  # who counts one step in ten wants it cheap
        reduced = session.scalers.used or session.scalers.autocast
        return len(self._recorders) < _STEPS and (session.calibrating or not reduced)

    def add(self, recorder: Recorder) -> None:
        """Such a step, which is over."""
        self._recorders.append(recorder)

    def layers(self, profile: Profile, examined: Examined) -> tuple[Layer, ...]:
        """The layers with what the replays say of their gradients, where those were counted as FP32 has them."""
        if not examined.exact or not examined.replays or in_use(profile).truncated:
            return profile.layers
        from amp_doctor.probe.zeros import as_at

        first = examined.replays[0]
        found = as_at((first.arrived, *self._steps(sorted({scale for _, scale in first.arrived}), profile.seconds)))
        return tuple(
            replace(
                layer,
                sites={
                    role: replace(site, as_at=found.get((layer.name, role), {})) for role, site in layer.sites.items()
                },
            )
            for layer in profile.layers
        )

    def _steps(self, scales: list[float], seconds: float) -> Iterator[Mapping[tuple[Place, float], Arrived]]:
        """Those that there is time for."""
        from amp_doctor.probe.graph_calls import OutOfTime
        from amp_doctor.probe.precisions import O1_FP16
        from amp_doctor.probe.replay import replay

        most = max(_SECONDS, _SHARE * seconds)
        last, deadline = time.thread_time() + most, time.monotonic() + _BUSY * most
        while self._recorders and scales and time.thread_time() < last:
            recording = self._recorders.pop(0).stop()
            if recording.losses and recording.exact:
                try:
                    yield replay(recording, O1_FP16, backward=False, deadline=deadline, scales=scales).arrived
                except OutOfTime:
                    return
