"""The terminal as it was before the script, whatever the script does to stdout and stderr."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

NAMES = ("stdout", "stderr")


class Streams:
    """`open` before the script, `reclaim` before the report, `close` after it.

    With `diverted` the script's stdout goes to stderr, children included, and the report has stdout for itself.
    """

    def __init__(self, diverted: bool) -> None:
        self._diverted = diverted
        self._objects: dict[str, Any] = {}
        # A copy of each descriptor, out of reach of a script that closes 1 or 2.
        self._kept: dict[str, int] = {}
        self._ours: dict[str, TextIO] = {}
        self._errors: str | None = None

    def open(self) -> None:
        """Keep the descriptors, and give the script the error handling of a plain run."""
        for name in NAMES:
            stream = self._objects[name] = getattr(sys, name)
            with suppress(OSError, ValueError, AttributeError):
                self._kept[name] = _copy(stream.fileno())
        stdout = self._objects["stdout"]
        # Before the diversion: a stream that was opened on a file asks the terminal in its place for a position.
        if isinstance(stdout, io.TextIOWrapper) and stdout is sys.__stdout__:
            # Ours writes escapes where a terminal lacks a character; stdin still has what Python chose.
            self._errors = stdout.errors
            stdout.reconfigure(errors=getattr(sys.__stdin__, "errors", None) or "strict")
        if self._diverted:
            self._divert(stdout)

    def _divert(self, stdout: Any) -> None:
        if len(self._kept) == len(NAMES):
            stdout.flush()
            os.dup2(self._kept["stderr"], stdout.fileno())
        else:
            sys.stdout = sys.stderr

    def reclaim(self) -> None:
        """`sys.stdout` and `sys.stderr` lead where they led, after all that the script has written; twice is once."""
        if self._ours:
            return
        self._flush()
        for name, stream in self._objects.items():
            self._ours[name] = self._fresh(stream, self._kept[name]) if name in self._kept else stream
            setattr(sys, name, self._ours[name])

    def close(self) -> None:
        """Give the streams back that we were given, if they still work."""
        if not self._ours:
            self._flush()
        if self._diverted and len(self._kept) == len(NAMES):
            with suppress(OSError, ValueError):
                os.dup2(self._kept["stdout"], self._objects["stdout"].fileno())
        for name, stream in self._objects.items():
            kept, ours = self._kept.get(name), self._ours.get(name)
            if kept is None or self._works(stream, kept):
                setattr(sys, name, stream)
                if ours is not None and ours is not stream:
                    ours.close()
                if kept is not None:
                    os.close(kept)
        if self._errors is not None and not self._objects["stdout"].closed:
            self._objects["stdout"].reconfigure(errors=self._errors)

    def _flush(self) -> None:
        """Write out what the script has left in the streams it has now, and in those it was given."""
        for name in NAMES:
            both: tuple[Any, Any] = (getattr(sys, name, None), self._objects.get(name))
            for stream in both:
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()

    @staticmethod
    def _fresh(stream: Any, kept: int) -> TextIO:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        return open(os.dup(kept), "w", encoding=encoding, errors="backslashreplace")

    @staticmethod
    def _works(stream: Any, kept: int) -> bool:
        """Whether a stream is open and leads to where it led."""
        try:
            same = os.path.samestat(os.fstat(stream.fileno()), os.fstat(kept))
            return same and "write" not in getattr(stream, "__dict__", {})
        except (OSError, ValueError, AttributeError):
            return False


def flush() -> None:
    """Write out what stands in the streams, as far as they take it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _copy(descriptor: int) -> int:
    """A copy above the numbers that programs expect; it is not passed on to other programs."""
    try:
        import fcntl
    except ImportError:  # Windows
        return os.dup(descriptor)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100)
