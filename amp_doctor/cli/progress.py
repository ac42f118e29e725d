"""How far a probed script is, in a line of its own below what the script prints.

A bar that is redrawn by a thread, or that puts an object of its own in the place of `sys.stdout`, would change the
script. This one is drawn only when a step ends or a line of output does, and taken away before the script writes: the
`write` of the two streams is shadowed on the very objects the script has. It stays away while the script is in the
middle of a line, as a progress bar of its own is. After a drawing the cursor stands at the start of the line, so that
output which passes by these streams (from C, from other processes) overwrites it.
"""

from __future__ import annotations

import io
import os
import stat
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

    def start(self, diverted: bool = False) -> None:
        """Draw for the first time, if people look on and nothing but this process writes to their terminal.

        With `diverted` the script's stdout goes to stderr.
        """
        # Ranks of torchrun share a terminal, and write past each other.
        alone = os.environ.get("WORLD_SIZE", "1") == "1" and os.environ.get("TERM") != "dumb"
        if not alone or not _terminal(sys.stderr):
            return
        shown = diverted or _terminal(sys.stdout)
        if not shown and _piped(sys.stdout):
            return  # into tee, say, which writes to the same terminal whenever it likes
        # It is the first stream that is drawn on.
        self._shadow(sys.stderr)
        if shown and sys.stdout is not None:
            if diverted and isinstance(sys.stdout, io.TextIOWrapper):
                # As stderr is: what stood in a buffer could come out in the middle of a drawing.
                sys.stdout.reconfigure(line_buffering=True)
            self._shadow(sys.stdout)
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


def _piped(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
