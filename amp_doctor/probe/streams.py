"""The terminal as it was before the script, whatever the script does to stdout and stderr."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO


class Streams:
    """`open` before the script, `reclaim` before the report, `close` at the end.

    With `diverted` the script's stdout goes to stderr, children included, and the report has stdout for itself.
    """

    def __init__(self, diverted: bool) -> None:
        self._diverted = diverted
        self._objects: dict[str, Any] = {}
        # A copy of each descriptor, out of reach of a script that closes 1 or 2.
        self._kept: dict[str, int] = {}
        self._errors: dict[str, str] = {}

    def open(self) -> None:
        """Keep the descriptors, and give the script the error handling of a plain run."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            self._objects[name] = stream
            with suppress(OSError, ValueError, AttributeError):
                self._kept[name] = _copy(stream.fileno())
        if self._diverted and len(self._kept) == 2:
            self._objects["stdout"].flush()
            os.dup2(self._kept["stderr"], self._objects["stdout"].fileno())
        elif self._diverted:
            sys.stdout = sys.stderr
        stream = self._objects["stdout"]
        if isinstance(stream, io.TextIOWrapper) and stream is sys.__stdout__:
            # Ours writes escapes where a terminal lacks a character; stdin still has what Python chose.
            self._errors["stdout"] = stream.errors or "strict"
            stream.reconfigure(errors=getattr(sys.__stdin__, "errors", None) or "strict")

    def reclaim(self) -> None:
        """`sys.stdout` and `sys.stderr` are ours again, after all that the script has written."""
        for name in ("stdout", "stderr"):
            for stream in (getattr(sys, name), self._objects.get(name)):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        if self._diverted and "stdout" in self._kept:
            with suppress(OSError, ValueError):
                os.dup2(self._kept["stdout"], self._objects["stdout"].fileno())
        for name, stream in self._objects.items():
            setattr(sys, name, stream if self._works(name) else self._anew(name))
        if "stdout" in self._errors and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors=self._errors["stdout"])

    def _works(self, name: str) -> bool:
        """Whether the stream we had is open and leads to where it led."""
        kept, stream = self._kept.get(name), self._objects[name]
        if stream is None or stream.closed:
            return False
        if kept is None:
            return True
        try:
            return os.path.samestat(os.fstat(stream.fileno()), os.fstat(kept))
        except (OSError, ValueError):
            return False

    def _anew(self, name: str) -> TextIO:
        kept, old = self._kept.get(name), self._objects[name]
        if kept is None:
            return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - until the process ends
        encoding = getattr(old, "encoding", None) or "utf-8"
        return open(os.dup(kept), "w", encoding=encoding, errors="backslashreplace")  # noqa: PTH123


def _copy(descriptor: int) -> int:
    """A copy above the numbers that programs expect; it is not passed on to other programs."""
    try:
        import fcntl
    except ImportError:  # Windows
        return os.dup(descriptor)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 100)
