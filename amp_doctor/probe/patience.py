"""How long a script may take: until its time is up, and after its last step, until it has come to its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from amp_doctor.probe import alarm

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.children import Children
    from amp_doctor.probe.interrupts import Interrupts
    from amp_doctor.probe.recording import Recording


class Patience:
    """Owns the threads that wait. `give_up(note, how)` ends a script that an interrupt has not ended."""

    def __init__(
        self,
        recording: Recording,
        children: Children,
        interrupts: Interrupts,
        give_up: Callable[[str, str], None],
    ) -> None:
        self._recording, self._children, self._interrupts, self._give_up = recording, children, interrupts, give_up
        self._watches: list[alarm.Watch] = []
        self._looking = False

    def limit(self, seconds: float) -> None:
        """The script may take so long in all."""
        self._wait(seconds, "time-limit")

    def stopping(self) -> None:
        """Stop is about to be raised: the script gets some time to come to its end."""
        if any(one.rang for one in self._watches):
            return
        self.cancel()
        until, seconds = self._recording.deadline, alarm.PATIENCE
        if until is not None:
            seconds = min(seconds, max(until - time.time(), alarm.GRACE))
        self._wait(seconds, "steps")

    def child_started(self) -> None:
        """Nobody answers a script that waits for what its stopped children were to say."""
        if not self._looking:
            self._looking = True
            self._start(alarm.Lookout(self._only_stopped_children, self.stopping))

    def cancel(self) -> None:
        """Nobody needs to wait any more."""
        for one in self._watches:
            one.cancel()

    def close(self) -> None:
        """Let the threads come to their end."""
        for one in self._watches:
            one.wait()

    def _wait(self, seconds: float, how: str) -> None:
        def interrupt() -> None:
            if how == "time-limit":
                self._recording.expire()
                if alarm.wait_for(lambda: self._recording.stopped, alarm.RUNOUT):
                    return
            self._interrupts.stop_main()

        def give_up() -> None:
            self._give_up(f"the script did not end within {alarm.GRACE:g} s after the stop, and was ended", how)

        self._start(alarm.Alarm(seconds, interrupt, give_up, self._children.all_gone))

    def _start(self, watch: alarm.Watch) -> None:
        self._watches.append(watch)
        watch.start()

    def _only_stopped_children(self) -> bool:
        return self._children.all_stopped and not self._recording.steps
