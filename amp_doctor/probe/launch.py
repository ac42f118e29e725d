"""Runs a program in this process as `__main__`, and waits for what it leaves behind."""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import os
import sys
import threading
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import amp_doctor
from amp_doctor.probe.program import Program, Target, absolute, path_is_safe, program_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# The modules that were `__main__`: they live as long as the process, as in a plain run.
_kept: list[ModuleType] = []
# Those that were loaded when the first of them was staged.
_before: list[Any] = []


@contextmanager
def stage(target: Target) -> Iterator[None]:
    """`sys.argv`, `sys.path[0]` and `sys.modules["__main__"]` as the script expects them, and back again."""
    before = sys.argv, sys.path[:], sys.modules.get("__main__")
    _before[:] = _before or sys.modules.values()
    first = os.getcwd() if target.path is None else os.path.dirname(os.path.realpath(target.path))
    sys.argv = [target.path or "-m", *target.arguments]
    if not path_is_safe():
        # Ours is the directory of the console script, or the current one under `python -m amp_doctor`.
        sys.path[:1] = [first]
    _keep_findable()
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is not None:
            sys.modules["__main__"] = before[2]


def run(target: Target) -> BaseException | None:
    """Run the target on its stage; what it raised, None when it came to its end.

    A ScriptError says that there is nothing to run.
    """
    program = program_of(target)
    module = _main(program)
    sys.argv[0] = program.argv0
    if target.path is not None and not path_is_safe():
        sys.path[0] = program.path0
    try:
        exec(program.code, module.__dict__)
    except BaseException as error:  # noqa: BLE001 - judged by the caller
        return error
    return None


def loaded_before() -> list[Any]:
    """The modules that are not a script's: they were there before it."""
    return list(_before)


def kept() -> list[ModuleType]:
    """The modules that were `__main__`, the latest last."""
    return list(_kept)


def _main(program: Program) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(program.attributes, __builtins__=builtins, __annotations__={})
    _kept.append(module)
    sys.modules["__main__"] = module
    return module


def _keep_findable() -> None:
    """Spawned children must be able to import this package, also from a checkout that is not installed."""
    name = amp_doctor.__name__
    if importlib.machinery.PathFinder.find_spec(name, sys.path) is None:
        sys.path.append(os.path.dirname(os.path.dirname(absolute(amp_doctor.__file__))))


def others_of(known: set[threading.Thread]) -> list[threading.Thread]:
    """The threads that are not `known` and would keep this process from ending."""
    me = threading.current_thread()
    return [one for one in threading.enumerate() if not one.daemon and one is not me and one not in known]


def wind_up(known: set[threading.Thread]) -> None:
    """What Python does when `__main__` has ended: wait for the other threads, then call the atexit functions.

    It is done here so that the report comes after everything the script has to say. Threads that are `known` from
    before the script are not waited for.
    """
    callbacks: list[Any] = getattr(threading, "_threading_atexits", [])
    for callback in reversed(callbacks):  # executors: their idle threads would never end by themselves
        callback()
    callbacks.clear()
    while others := others_of(known):
        for one in others:
            one.join()
    getattr(atexit, "_run_exitfuncs", int)()
