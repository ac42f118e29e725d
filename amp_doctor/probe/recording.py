"""The session of one process: it begins when the script imports torch, is saved as it goes, and is ended once."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import Profile, Steps
from amp_doctor.probe import emulation
from amp_doctor.probe.arrivals import Arrivals
from amp_doctor.probe.forks import in_children
from amp_doctor.probe.trial import Trial, seed_numpy, seed_python
from amp_doctor.probe.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.dryrun import DryRun
    from amp_doctor.probe.impose import Imposed
    from amp_doctor.probe.session import Session
    from amp_doctor.probe.settings import Settings

# Seconds between two savings of what has been seen so far.
INTERVAL = 5.0
WIDENED = (
    "that was while calibrating, with autocast widened, so that dtypes were not those the script asks for: "
    "--mode observe runs it as it is written"
)
NO_TORCH = "the script did not import torch"
NO_STEP = "no optimizer step was seen"


class Recording:
    """`keep` is given the profile every few seconds and when the run is stopped, before Stop is raised.

    `stepped(step, steps)` is called after each step, `stopping()` when the session stops the script, `firm_end()` when
    it has swallowed Stop twice. With `says` a dry run that nobody asked for is announced on stderr.
    """

    def __init__(self, settings: Settings, keep: Callable[[Profile], None] | None = None, says: bool = False) -> None:
        self.settings = settings
        self._says = says
        self.session: Session | None = None
        self.stepped: Callable[[int, int], None] | None = None
        self.stopping: Callable[[], None] | None = None
        self.firm_end: Callable[[], None] | None = None
        # Torch came, and the probe could not watch it.
        self.failed = False
        # What the script raised, if anything.
        self.error: BaseException | None = None
        # When the time is up, as `time.time()` tells it: children keep to it as well.
        self.deadline: float | None = None
        self._keep = keep
        self._kept_at = -INTERVAL
        self._notes: list[str] = []
        self._ended = self._expired = self._unasked = False
        self._bare: Profile | None = None
        self._dry_run: DryRun | None = None
        self._imposed: Imposed | None = None
        self._writes = Writes(lambda: self.stopped)
        watched = {"torch": self._begin, "safetensors.torch": self._writes.watch_safetensors}
        self._arrivals = Arrivals(watched | ({"numpy": seed_numpy} if settings.trial else {}))
        self._forget: Callable[[], None] = lambda: None

    @property
    def stopped(self) -> bool:
        """Whether the run was ended by us, at the last step or at the time limit."""
        return self._ended

    @property
    def steps(self) -> int:
        """The steps of this process so far."""
        return self.session.step if self.session is not None else 0

    def install(self) -> None:
        """Watch this process from now on."""
        if self.settings.trial:
            seed_python()
        self._forget = in_children(self.remove)
        self._arrivals.install()

    def remove(self) -> None:
        """Give everything back; twice is once."""
        self._forget()
        self._arrivals.remove()
        self._writes.remove()
        # With it go the frames that it came through, and what the script has there.
        self.error = None
        if self._imposed is not None:
            self._imposed.remove_above()
        if self.session is not None:
            self.session.remove()
        if self._imposed is not None:
            self._imposed.remove_below()
        if self._dry_run is not None:
            self._dry_run.stop()

    def note(self, text: str) -> None:
        """Say something in the profile, once; also after the end."""
        if text not in self._notes:
            self._notes.append(text)

    def end(self, how: str) -> Profile:
        """The profile, with all notes there are by now; the first call decides how the run ended."""
        if self._expired and how in ("steps", "finished"):
            how = "time-limit"
        if how == "exception":
            self._failed()
        if self.session is not None:
            return self._noted(self.session.end(how))
        if self._bare is None:
            asked = self.settings
            steps = Steps(asked.steps)
            self._bare = Profile(
                command=asked.command, script=asked.script, mode=asked.mode, steps=steps, ended=how, ranks=1
            )
            self._ends(self._bare)
        missing = () if "torch" in sys.modules else (NO_TORCH,)
        return self._noted(replace(self._bare, notes=missing))

    def _failed(self) -> None:
        """Say what has a part in the failure: the emulation, calibrating, or neither where a GPU fails as well."""
        session, words = self.session, emulation.FAILED
        if session is not None and self.error is not None and session.profile is None and session.failed(self.error):
            words = emulation.AS_ON_A_GPU
        elif session is not None and session.calibrating and session.scalers.widened:
            self.note(WIDENED)
        told = not {emulation.FAILED, emulation.AS_ON_A_GPU}.isdisjoint(self._notes)
        if self._unasked and not told and not isinstance(self.error, emulation.INNOCENT):
            self.note(words)
            if self._says:
                emulation.say(words)

    def expire(self) -> None:
        """From any thread: the time is up, and the next step is the last."""
        self._expired = True

    def _begin(self) -> None:
        """Torch is there."""
        try:
            self._settle()
            if self.settings.dry_run:
                from amp_doctor.probe.dryrun import DryRun

                self._dry_run = DryRun()
                self._dry_run.start()
            from amp_doctor.probe.session import Session

            if self.settings.trial:
                from amp_doctor.probe.impose import Imposed

                self._imposed = Imposed(Trial.read(self.settings.trial))
                self._imposed.below()
        except Exception as error:  # noqa: BLE001 - a torch that we do not know must not end the script
            self.failed = True
            self.note(f"the probe could not begin, as this torch lacks what it needs: {error}")
            return
        self.session = session = Session(self.settings, self._ends)
        session.on_step = self._steps
        if self.firm_end is not None:
            session.firm_end = self.firm_end
        session.imposed = self._imposed
        session.install()
        if self._imposed is not None:
            self._imposed.above(session)
        self._writes.watch_torch()

    def _settle(self) -> None:
        settings, self.settings = self.settings, emulation.settled(self.settings)
        self._unasked = self.settings is not settings
        if self._unasked and self._says:
            emulation.say(emulation.STARTED.format(settings.cuda_amp))

    def _noted(self, profile: Profile) -> Profile:
        return replace(profile, notes=tuple(dict.fromkeys((*profile.notes, *self._notes, *self._writes.notes()))))

    def _ends(self, profile: Profile) -> None:
        """The session has made its profile."""
        if profile.ended in ("steps", "time-limit"):
            self._ended = True
            if self.stopping is not None:
                self.stopping()
        if self._keep is not None:
            self._keep(self._noted(profile))

    def _steps(self, step: int, steps: int) -> None:
        if self.stepped is not None:
            self.stepped(step, steps)
        now = time.monotonic()
        if self._keep is not None and self.session is not None and now - self._kept_at >= INTERVAL:
            self._kept_at = now
            self._keep(self._noted(self.session.snapshot()))
        if self.deadline is not None and time.time() >= self.deadline:
            self._expired = True
        if self._expired and self.session is not None:
            self.end("time-limit")
            self.session.stop()
