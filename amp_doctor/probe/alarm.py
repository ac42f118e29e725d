"""A time that runs out: the script is interrupted, and some time later given up."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds that an interrupted script has for its cleanup.
GRACE = 10.0
# Seconds that a script has to end after its last step: a final checkpoint, the other threads, a last evaluation.
PATIENCE = 60.0
# Seconds that it has when its children have gone and it does nothing but wait for what they were to say.
IDLE = 5.0
# The share of a processor below which it does nothing.
STILL = 0.1
# Seconds in which a script whose time is up may reach the end of a step, the best place to stop it.
RUNOUT = 1.0


class Watch(threading.Thread):
    """A thread that waits for something; `cancel` ends it. `rang` once what it waited for has come."""

    def __init__(self) -> None:
        super().__init__(name="amp-doctor", daemon=True)
        self.rang = False
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """There is no need any more."""
        self._cancelled.set()

    def wait(self) -> None:
        """Let a cancelled one come to its end."""
        if threading.current_thread() is not self and self.is_alive():
            self.join(1.0)


class Alarm(Watch):
    """After `seconds` calls `interrupt`, after `GRACE` more `give_up`, both from this thread.

    Already after `IDLE` seconds in which `deserted()` holds and the process does nothing.
    """

    def __init__(
        self, seconds: float, interrupt: Callable[[], None], give_up: Callable[[], None], deserted: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._seconds = seconds
        self._interrupt, self._give_up, self._deserted = interrupt, give_up, deserted

    def run(self) -> None:
        """Wait, interrupt, wait, give up."""
        until, idle = time.monotonic() + self._seconds, 0.0
        while (left := until - time.monotonic()) > 0 and idle < IDLE:
            span, busy = min(left, 1.0), time.process_time()
            if self._cancelled.wait(span):
                return
            still = time.process_time() - busy < STILL * span
            idle = idle + span if still and self._deserted() else 0.0
        self.rang = True
        self._interrupt()
        if not self._cancelled.wait(GRACE):
            self._give_up()


class Lookout(Watch):
    """Calls `then` once `happened()` is true; it looks every second."""

    def __init__(self, happened: Callable[[], bool], then: Callable[[], None]) -> None:
        super().__init__()
        self._happened, self._then = happened, then

    def run(self) -> None:
        """Look, until there is something to see."""
        while not self._cancelled.wait(1.0):
            if self._happened():
                self._then()
                return


def wait_for(happened: Callable[[], bool], seconds: float) -> bool:
    """Wait until something has happened, but no longer than so many seconds; whether it has."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True
