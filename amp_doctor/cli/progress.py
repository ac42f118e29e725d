"""How far a probed script is, in a line of its own below what the script prints.

A bar that is redrawn by a thread, or that puts an object of its own in the place of `sys.stdout`, would change the
script. This one is drawn only when a step ends or a line of output does, and taken away before the script writes: the
`write` of the two streams is shadowed on the very objects the script has. It stays away while the script is in the
middle of a line, as a progress bar of its own is. After a drawing the cursor stands at the start of the line, so that
output which passes by these streams (from C, from other processes) overwrites it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from shutil import get_terminal_size
from time import monotonic
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING = "waiting for the first optimizer step"
# Seconds between two drawings.
PAUSE = 0.25
ERASE = "\r\x1b[K"
BAR = 24


class StepLine:
    """`line(12, 50)` after every step; `start()` before the script, `close()` before the report."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._streams: list[tuple[TextIO, Callable[[str], int]]] = []
        self._process = os.getpid()
        self._told = WAITING
        self._drawn = False
        self._midline = False
        self._last = float("-inf")

    def start(self) -> None:
        """Draw for the first time, if stderr is a terminal and this is the only process that is told to train."""
        # Ranks of torchrun share a terminal, and write past each other.
        if not _terminal(sys.stderr) or os.environ.get("WORLD_SIZE", "1") != "1" or os.environ.get("TERM") == "dumb":
            return
        # stderr first: it is the one that is drawn on.
        for stream in (sys.stderr, sys.stdout):
            if _terminal(stream):
                self._shadow(stream)
        self._draw()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` steps have been attempted."""
        filled = BAR * min(done, total) // max(total, 1)
        self._told = f"[{'#' * filled}{'.' * (BAR - filled)}] step {done} of {total}"
        self._draw()

    def close(self) -> None:
        """Take the line away, and give the streams back as they were."""
        self._erase()
        for stream, _ in self._streams:
            vars(stream).pop("write", None)
        self._streams.clear()

    def _shadow(self, stream: TextIO) -> None:
        plain = stream.write

        def write(text: str, /) -> int:
            self._erase()
            written = plain(text)
            if text:
                self._midline = not text.endswith("\n")
                if not self._midline:
                    self._draw()
            return written

        stream.write = write  # type: ignore[method-assign]
        self._streams.append((stream, plain))

    def _draw(self) -> None:
        if not self._streams or self._midline or os.getpid() != self._process:
            return
        now = self._clock()
        if now - self._last < PAUSE:
            return
        self._last = now
        room = get_terminal_size().columns - 1
        self._put(f"{ERASE}{f'amp-doctor: {self._told}'[:room]}\r")
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            self._put(ERASE)

    def _put(self, text: str) -> None:
        stream, plain = self._streams[0]
        with suppress(OSError, ValueError):  # closed, or a terminal that is gone
            plain(text)
            stream.flush()


def _terminal(stream: TextIO | None) -> bool:
    return stream is not None and hasattr(stream, "__dict__") and not stream.closed and stream.isatty()
