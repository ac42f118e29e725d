"""Reaching the main thread from outside: SIGTERM, which ends the script with a report, and the time limit."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from amp_doctor.probe.alarm import wait_for
from amp_doctor.probe.settings import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

# Sent by kill, torchrun and batch systems; by losing the terminal.
DEADLY = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# Seconds after which a main thread that has not run its signal handler is taken to be stuck.
DEAF = 3.0


class Interrupts:
    """`die(signal)` is called when one arrives, unless the script has a handler of its own.

    `stop_main` raises Stop in the thread that runs the script, only while it is `open`. Our signal handler does it
    where it can, after `expire()`, because a signal also ends a sleep or a wait for a lock.
    """

    def __init__(self, die: Callable[[int], None], expire: Callable[[], object]) -> None:
        self._die, self._expire = die, expire
        self._thread = threading.get_ident()
        self._ours: list[int] = []
        self._due = self._met = False
        self._pipe: tuple[int, int] | None = None
        self.open = False

    def install(self) -> None:
        """Listen to the signals that nobody handles or ignores."""
        for number in DEADLY:
            with suppress(ValueError):  # not the main thread
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._arrives)
                    self._ours.append(number)

    def listen(self) -> None:
        """Have a thread answer where the main thread cannot, because it waits inside torch for a rank that is gone."""
        if not self._ours:
            return
        self._pipe = read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._answer, args=(read,), name="amp-doctor", daemon=True).start()

    def _answer(self, read: int) -> None:
        with suppress(OSError):  # closed
            while number := os.read(read, 1):
                if number[0] in self._ours and not self._due and not wait_for(lambda: self._met, DEAF):
                    self._die(number[0])

    def remove(self) -> None:
        """Listen no more; what the script has installed meanwhile stays."""
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            with suppress(ValueError):
                if (other := signal.set_wakeup_fd(-1)) != pipe[1]:
                    signal.set_wakeup_fd(other)
            for descriptor in pipe[::-1]:
                os.close(descriptor)
        for number in self._ours:
            with suppress(ValueError):
                if signal.getsignal(number) == self._arrives:
                    signal.signal(number, signal.SIG_DFL)
        self._ours.clear()

    def stop_main(self) -> None:
        """From another thread: the time is up."""
        if not self.open:
            return
        self._due = True
        for number in self._ours:
            if signal.getsignal(number) == self._arrives and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._thread, number)
                return
        # Its profile is made when the script has unwound: making it from here would race with the script.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Stop))

    def close(self) -> None:
        """From the thread of the script: it has ended, and is not to be interrupted any more."""
        self.open = self._due = False
        # What was set a moment ago and has not been raised yet.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)

    def _arrives(self, number: int, _frame: object) -> None:
        self._met = True
        if self._due:
            self._due = False
            if self.open:
                self._expire()
                raise Stop
            return
        self._die(number)


def die_by(number: int) -> None:
    """End this process by the signal, as it would have without us."""
    try:
        signal.signal(number, signal.SIG_DFL)
    except ValueError:  # not the main thread, which alone may do that in Python
        ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
