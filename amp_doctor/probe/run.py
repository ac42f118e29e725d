"""Runs a script as `__main__` of this process until it has made enough optimizer steps, and sees to its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amp_doctor.errors import ProfileError
from amp_doctor.probe.children import Children
from amp_doctor.probe.ending import Outcome, outcome_of
from amp_doctor.probe.forks import in_children
from amp_doctor.probe.interrupts import Interrupts, die_by
from amp_doctor.probe.launch import others_of, run, stage, wind_up
from amp_doctor.probe.patches import Patches
from amp_doctor.probe.patience import Patience
from amp_doctor.probe.program import Target, program_of
from amp_doctor.probe.programs import Programs
from amp_doctor.probe.ranks import SHORT, TIMEOUT, Ranks
from amp_doctor.probe.recording import Recording
from amp_doctor.probe.saving import ProfileFile
from amp_doctor.probe.scratch import Scratch
from amp_doctor.probe.settings import Stop
from amp_doctor.probe.streams import Streams, flush
from amp_doctor.probe.traces import show, without_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.probe.settings import Settings

__all__ = ["Outcome", "Target", "run_script"]


def run_script(
    target: Target,
    settings: Settings,
    *,
    profile_file: str | None,
    scratch: str | None,
    report: Callable[[Profile, int | None], int],
    progress: Callable[[int, int], None] | None,
    stdout_to_stderr: bool = False,
) -> int:
    """Run the target under a session and report; the status to exit with.

    `report(profile, script_status)` is called once, on rank 0 only, with `sys.stdout` and `sys.stderr` as they were
    before the script; it may be called from a signal handler or another thread, and the process may end right after it.
    `script_status` is None when the script finished well or was stopped by us, else the status of a plain run.
    A ScriptError says that there is nothing to run, a ProfileError that `profile_file` cannot be written.
    """
    if target.path is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program_of(target)
        except SyntaxError as error:
            return show(error)
    file = ProfileFile(profile_file) if profile_file is not None else None
    copy = Scratch(scratch) if scratch is not None else None
    return _Run(target, settings, file, copy, report, progress, Streams(stdout_to_stderr)).go()


class _Run:
    """One run of a script, from the first line to the exit status."""

    def __init__(
        self,
        target: Target,
        settings: Settings,
        file: ProfileFile | None,
        scratch: Scratch | None,
        report: Callable[[Profile, int | None], int],
        progress: Callable[[int, int], None] | None,
        streams: Streams,
    ) -> None:
        self._target, self._file, self._scratch, self._streams = target, file, scratch, streams
        self._report, self._progress = report, progress
        self._settings = settings
        self._ranks = Ranks()
        self._recording = Recording(settings, self._keep if file is not None else None, says=True)
        if settings.time_limit is not None:
            self._recording.deadline = time.time() + settings.time_limit
        self._children = Children(self._recording)
        self._programs = Programs(settings)
        self._interrupts = Interrupts(self._killed, lambda: self._recording.end("steps"))
        self._patience = Patience(self._recording, self._children, self._interrupts, self._too_long)
        self._recording.stepped, self._recording.stopping = self._stepped, self._patience.stopping
        self._recording.firm_end = self._swallowed
        self._children.on_start = self._patience.child_started
        self._patches = Patches()
        self._clear = True
        self._threads = set(threading.enumerate())
        self._exit = os._exit
        self._owner = os.getpid()
        # Whoever takes the ticket closes the run.
        self._ticket = iter([True])
        self._deadly: int | None = None
        self._fault: ProfileError | None = None

    def go(self) -> int:
        """The whole run; the status to exit with."""
        with ExitStack() as stack:
            self._set_up(stack)
            try:
                outcome = self._script()
            except Stop:  # the time was up in the moment in which the script ended
                outcome = Outcome("steps")
            self._interrupts.close()
            status = self._close(outcome, TIMEOUT if outcome.status is None else SHORT, last=True)
            while status is None:  # another thread is closing, and will end the process
                time.sleep(1)
            if self._deadly is not None:
                die_by(self._deadly)
            if not self._clear:
                self._leave_at_once(status)
        self._patience.close()
        if self._fault is not None:
            raise self._fault
        return status

    # --- before and during ----------------------------------------------------------------------------------------

    def _set_up(self, stack: ExitStack) -> None:
        self._streams.open()
        stack.callback(self._streams.close)
        if self._scratch is not None:
            self._target = self._scratch.target(self._target)
            self._scratch.enter()
            stack.callback(self._scratch.leave)
        stack.enter_context(stage(self._target))
        stack.callback(self._children.close)
        stack.callback(in_children(self._take_down))
        stack.callback(self._take_down)
        self._patches.wrap(threading, "excepthook", without_stop)
        self._patches.wrap(os, "_exit", self._exits)
        self._interrupts.install()
        if self._ranks.size > 1:
            self._interrupts.listen()
        self._children.install()
        self._programs.install(self._target)
        self._recording.install()
        if self._settings.time_limit is not None:
            self._patience.limit(self._settings.time_limit)

    def _take_down(self) -> None:
        """Give back what is wrapped: at the end, and in forked children."""
        self._patience.cancel()
        self._recording.remove()
        self._children.remove()
        self._programs.remove()
        self._interrupts.remove()
        self._patches.undo()

    def _script(self) -> Outcome:
        self._interrupts.open = True
        error = self._recording.error = run(self._target)
        outcome = outcome_of(error, self._recording.stopped)
        if outcome.note is not None:
            self._recording.note(outcome.note)
        if outcome.shown and error is not None:
            outcome = Outcome(outcome.how, show(error) or None)
        try:
            wind_up(self._threads)
        except KeyboardInterrupt:
            outcome = Outcome("interrupted", outcome.status or 130)
        except Stop:
            self._recording.note("threads or atexit functions of the script had not ended, and were left")
        return outcome

    # --- what is heard from the session -----------------------------------------------------------------------------

    def _stepped(self, step: int, steps: int) -> None:
        self._ranks.look()
        if self._progress is not None and self._ranks.rank == 0:
            try:
                self._progress(step, steps)
            except Exception:  # noqa: BLE001 - a terminal that went away is no reason to end a training
                self._progress = None

    def _keep(self, profile: Profile) -> None:
        if self._file is not None and self._ranks.rank == 0:
            self._file.checkpoint(profile)

    def _swallowed(self) -> None:
        self._end_firmly(
            "the script caught the stop (a bare `except:` or `except BaseException`) and trained on: it was ended on "
            "the spot, without its own cleanup and atexit functions",
            "steps",
            TIMEOUT,
        )

    def _too_long(self, note: str, how: str) -> None:
        self._end_firmly(note, how, SHORT)

    # --- the ends -----------------------------------------------------------------------------------------------------

    def _close(self, outcome: Outcome, patience: float, *, last: bool = False) -> int | None:
        """Make the profile whole, write it, report; the status to exit with, None when that was done before.

        With `last` nothing of the script runs any more, and the ranks part: a report may take its time.
        """
        if not next(self._ticket, False):
            return None
        self._patience.cancel()
        profile = self._children.merged(self._recording.end(outcome.how), self._programs.started)
        met = self._ranks.merged(profile, patience)
        self._recording.remove()
        self._clear = not last or self._is_clear()
        self._streams.reclaim()
        if met is None:
            return outcome.status or 0
        profile = self._noted(*met)
        if self._file is not None:
            try:
                self._file.write(profile)
            except ProfileError as error:
                self._fault = error
        status = self._report(profile, outcome.status)
        # What could not be measured must not pass for sound.
        return status or (2 if self._recording.failed else 0)

    def _noted(self, profile: Profile, missing: list[int]) -> Profile:
        if missing:
            ranks = ", ".join(map(str, missing))
            profile = replace(profile, notes=(*profile.notes, f"not heard of in time, and not counted: rank {ranks}"))
        return self._scratch.told(profile) if self._scratch is not None else profile

    def _end_firmly(self, note: str, how: str, patience: float) -> None:
        """From where the script cannot catch anything: report, and end the process."""
        self._recording.note(note)
        status = self._close(Outcome(how), patience)
        if status is not None:
            self._leave_at_once(status)

    def _killed(self, number: int) -> None:
        """A signal that would have ended the plain run."""
        self._deadly = number
        self._recording.note(f"ended by {signal.Signals(number).name}")
        status: int | None = 0
        try:
            status = self._close(Outcome("interrupted", 128 + number), 0.0)
        finally:
            if status is not None:  # else a report is on its way, and the process dies after it
                flush()
                die_by(number)

    def _exits(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def _exit(status: int) -> Any:
            if os.getpid() == self._owner:
                self._recording.note(f"the script ended itself by os._exit({status})")
                told = self._close(Outcome("exception" if status else "finished", status or None), SHORT)
                if told is not None:
                    self._leave_at_once(told)
            return original(status)

        return _exit

    def _is_clear(self) -> bool:
        """Whether the process can end as usual: no thread of a stopped script is left, and no process group."""
        if not self._recording.stopped:
            return True
        return not others_of(self._threads) and self._ranks.leave(TIMEOUT)

    def _leave_at_once(self, status: int) -> None:
        if self._fault is not None:
            sys.stderr.write(f"amp-doctor: {self._fault}\n")
            status = 2
        flush()
        self._children.close(True)
        self._exit(status)
