"""Tracebacks as a plain run prints them: our frames are taken out, and the script's `sys.excepthook` is honoured."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amp_doctor
from amp_doctor.probe.settings import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

HOME = os.path.dirname(os.path.abspath(amp_doctor.__file__)) + os.sep

_OVERRIDES = os.sep + os.path.join("torch", "overrides.py")

# Where the standard library and installed packages are.
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
INSTALLED = ("<frozen ", *{sysconfig.get_path(name) + os.sep for name in _LIBRARIES})
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def family(error: BaseException) -> Iterator[BaseException]:
    """`error`, what it was raised from or in the handling of, and the members of groups; each once."""
    waiting, met = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in met:
            continue
        met.add(id(one))
        yield one
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def follows_stop(error: BaseException) -> bool:
    """Whether `error` is our Stop, or was raised while that was on its way."""
    return any(isinstance(one, Stop) for one in family(error))


def peel(error: BaseException) -> None:
    """Take the frames of this package out of the traceback of `error` and of its family."""
    for one in family(error):
        one.__traceback__ = _peeled(one.__traceback__)


def _peeled(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "handle_torch_function" and code.co_filename.endswith(_OVERRIDES):
            # A function of torch has handed itself to one of our modes, and is called again from there.
            kept[-1:] = []
        elif not code.co_filename.startswith(HOME):
            kept.append(trace)
        trace = trace.tb_next
    following = None
    for one in reversed(kept):
        one.tb_next = following
        following = one
    return following


def show(error: BaseException) -> int:
    """Print an exception that ended the script, as Python does; the status to exit with."""
    peel(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as asked:
        return status_of(asked)
    except Exception as fault:  # noqa: BLE001 - whatever the script's hook raises, Python prints both
        peel(fault)
        fault.__context__ = None
        _complain("Error in sys.excepthook:\n")
        sys.__excepthook__(type(fault), fault, fault.__traceback__)
        _complain("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def status_of(asked: SystemExit) -> int:
    """The status of a SystemExit; what is no number is printed, as Python does."""
    if asked.code is None:
        return 0
    if isinstance(asked.code, int):
        return asked.code & 0xFF
    _complain(f"{asked.code}\n")
    return 1


def without_stop(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `threading.excepthook` that has nothing to say about a thread that was stopped."""

    def excepthook(args: Any) -> Any:
        if not issubclass(args.exc_type, Stop):
            original(args)

    return excepthook


def summary(error: BaseException) -> str:
    """One line for a note: what was raised, and the innermost line of the user's code, or of any if there is none."""
    place = own_place(error)
    where = f" ({place[0]}:{place[1]})" if place else ""
    # torch writes some messages in bold.
    text = " ".join(_CONTROL.sub("", str(error)).strip().partition("\n")[0].split())
    return f"{type(error).__name__}{': ' if text else ''}{text[:200]}{where}"


def own_place(error: BaseException) -> tuple[str, int] | None:
    """File and line of the innermost frame of the user's code, or of any if there is none; our frames are taken out."""
    peel(error)
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith(INSTALLED)] or places
    return own[-1] if own else None


def _complain(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # the script closed its stderr
        sys.stderr.write(text)
        sys.stderr.flush()
