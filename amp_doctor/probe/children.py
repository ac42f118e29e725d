"""Trainers in processes of their own (`mp.spawn`, `multiprocessing.Process`): each gets a session, and all are summed.

A spawned child starts without our hooks, a forked one with hooks that must be forgotten. So the process object takes a
`run` of ours into the child: it begins a session with the same settings, runs what was to be run, and leaves the
profile in a file.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
import types
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.profile import Profile
from amp_doctor.errors import ProfileError
from amp_doctor.probe.patches import Patches
from amp_doctor.probe.ranks import TIMEOUT, Ranks
from amp_doctor.probe.recording import NO_STEP, NO_TORCH, Recording
from amp_doctor.probe.saving import ProfileFile, read
from amp_doctor.probe.settings import Stop
from amp_doctor.probe.traces import follows_stop, peel, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amp_doctor.probe.settings import Settings

# Modules whose processes train nothing, or must never be stopped from inside.
INTERNAL = (
    "concurrent.futures",
    "datasets",
    "joblib",
    "loky",
    "multiprocess",
    "multiprocessing",
    "tensorboard",
    "torch._inductor",
    "torch.utils.data",
    "torchdata",
    "wandb",
)
# Those among them that may well train, and cannot be stopped without their owner waiting forever.
POOLS = {
    "concurrent.futures.process": "concurrent.futures",
    "joblib.externals.loky.process_executor": "joblib",
    "multiprocessing.pool": "multiprocessing.pool",
}
# Ends the name of the mark that a child leaves when it is stopped.
STOPPED = ".stopped"


class Children:
    """Owns the wrapping of `Process.start` and the directory in which the children leave their profiles.

    `on_start()` is called after each child.
    """

    def __init__(self, recording: Recording, spool: str | None = None) -> None:
        self._recording = recording
        self.on_start: Callable[[], None] | None = None
        self._spool, self._own = spool, spool is None
        self._patches = Patches()
        self._started: list[tuple[str, str]] = []
        self._processes: list[Any] = []
        # Libraries whose processes were started and are not looked into.
        self._pools: set[str] = set()

    def install(self) -> None:
        """Put a session into the processes that are started from now on."""
        self._patches.wrap(BaseProcess, "start", self._start)

    def remove(self) -> None:
        """Leave them alone again."""
        self._patches.undo()

    def close(self, by_force: bool = False) -> None:
        """Remove the profiles that were left; `by_force` ends the children that are still running."""
        for process in self._processes if by_force else ():
            with suppress(OSError, ValueError, AssertionError):  # ended, closed, or of another process
                process.terminate()
        if self._own and self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)

    @property
    def all_stopped(self) -> bool:
        """Whether there were children and each has made its last step."""
        return bool(self._started) and all(os.path.exists(file + STOPPED) for file, _ in self._started)

    def all_gone(self) -> bool:
        """Whether only a parent that does not train itself is left, its children having made their last step.

        The sentinels tell: the processes themselves may be being waited for by the script.
        """
        if not self.all_stopped or self._recording.steps:
            return False
        with suppress(OSError, ValueError):  # closed
            sentinels = [process.sentinel for process in self._processes]
            return len(wait(sentinels, 0)) == len(sentinels)
        return True

    def _start(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def start(process: Any) -> None:
            target = getattr(process, "_target", None) or type(process)
            home = getattr(target, "__module__", None) or ""
            if home.startswith(tuple(f"{one}." for one in INTERNAL)) or home in INTERNAL:
                if home in POOLS:
                    self._pools.add(POOLS[home])
                original(process)
                return
            if self._spool is None:
                self._spool = tempfile.mkdtemp(prefix="amp-doctor-")
            file = os.path.join(self._spool, f"{os.getpid()}-{len(self._started)}.json")
            recording = self._recording
            process.run = Watched(process, recording.settings, recording.deadline, file, self._spool)
            try:
                original(process)
            finally:
                process.__dict__.pop("run", None)
            self._started.append((file, process.name))
            self._processes.append(process)
            if self.on_start is not None:
                self.on_start()

        return start

    def merged(self, profile: Profile, programs: Iterable[str] = ()) -> Profile:
        """The profile of this process and those of all its children, with notes about what is missing.

        `programs` are those that were started and not probed; they are named when there was nothing else to see.
        """
        if self._spool is not None:
            profile = self._with_children(profile, self._spool)
        notes = []
        if not profile.steps.attempted:
            notes = [f"processes of {home} were started, which are not probed" for home in sorted(self._pools)]
            if programs:
                notes.append(f"the script started other Python programs, which are not probed: {', '.join(programs)}")
        # Whoever has trained or not: a dry run is never silent.
        device = self._recording.settings.emulated if self._recording.settings.dry_run else profile.device
        return replace(profile, device=device, notes=(*profile.notes, *notes))

    def _with_children(self, profile: Profile, spool: str) -> Profile:
        names = dict(self._started)
        notes = [f"{name} left no profile: it was killed, or has not ended" for file, name in names.items()
                 if not os.path.exists(file)]  # fmt: skip
        files = sorted(os.path.join(spool, file) for file in os.listdir(spool) if file.endswith(".json"))
        found = {file: read(file) for file in files}
        notes += [f"{names.get(file, 'a process')} was killed; what it had seen until then is kept"
                  for file, one in found.items() if one is not None and not one.ended]  # fmt: skip
        trained = {file: one for file, one in found.items() if one is not None and one.steps.attempted}
        if trained:
            counts = sorted({one.steps.attempted for one in trained.values()})
            if len(counts) > 1:
                notes.append(f"the processes made different numbers of steps: {', '.join(map(str, counts))}")
        profile = replace(profile, notes=(*profile.notes, *notes))
        if not trained and not profile.steps.attempted:
            trained = {file: one for file, one in found.items() if one is not None}
        return _sum(profile, list(trained.values()))


def _sum(profile: Profile, others: list[Profile]) -> Profile:
    if others and not profile.steps.attempted:
        # A parent that only started the trainers is no rank, and that it did not step is no news.
        notes = tuple(one for one in profile.notes if one not in (NO_STEP, NO_TORCH))
        how = "" if profile.ended == "finished" else profile.ended
        first, *others = others
        start = replace(first, command=profile.command, script=profile.script, notes=(*first.notes, *notes))
        profile = start + replace(Profile(), ended=how)
    for other in others:
        profile += other
    return profile


class Watched:
    """Takes the place of `run` in a process object, and goes with it into the child."""

    def __init__(self, process: Any, settings: Settings, deadline: float | None, file: str, spool: str) -> None:
        self.process, self.settings, self.deadline, self.file, self.spool = process, settings, deadline, file, spool

    def __call__(self) -> None:
        """Run what was to be run, under a session of this process."""
        process = self.process
        process.__dict__.pop("run", None)
        file = ProfileFile(self.file)
        ranks = Ranks()
        recording = Recording(self.settings, file.checkpoint)
        recording.deadline = self.deadline
        children = Children(recording, self.spool)
        recording.stepped = lambda _step, _steps: ranks.look()

        def leave(how: str) -> None:
            with suppress(ProfileError):
                file.write(recording.end(how))

        def firm_end() -> None:
            recording.note(f"{process.name} did not let itself be stopped and was ended")
            leave("steps")
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(0)

        recording.firm_end = firm_end
        recording.stopping = Path(self.file + STOPPED).touch
        recording.install()
        children.install()
        try:
            process.run()
            leave("finished")
        except BaseException as error:  # noqa: BLE001 - judged, and told as Python tells it
            if not recording.stopped and not isinstance(error, Stop):
                code = error.code if isinstance(error, SystemExit) else 1
                if code not in (None, 0):
                    recording.note(f"{process.name} failed: {summary(error)}")
                interrupted = isinstance(error, KeyboardInterrupt)
                leave("interrupted" if interrupted else "exception" if code not in (None, 0) else "finished")
                _fail(process, error)
            elif not follows_stop(error):
                recording.note(f"after the stop {process.name} raised {summary(error)}")
            leave("steps")
        finally:
            if recording.stopped:
                ranks.leave(TIMEOUT)
            children.remove()
            recording.remove()


def _fail(process: Any, error: BaseException) -> None:
    """End the child as `BaseProcess._bootstrap` does, whose traceback would show our frames."""
    peel(error)
    if isinstance(error, SystemExit):
        raise error
    frame = sys._getframe(2)
    trace = types.TracebackType(error.__traceback__, frame, frame.f_lasti, frame.f_lineno)
    sys.stderr.write(f"Process {process.name}:\n")
    traceback.print_exception(type(error), error, trace)
    raise SystemExit(1)
