"""What a script has left in memory is given back: its next runs, in processes of their own, may need all there is."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import sysconfig
from contextlib import redirect_stdout, suppress
from types import FrameType, ModuleType
from typing import Any

from amp_doctor.probe.launch import kept, loaded_before


def release() -> bool:
    """Empty the modules of the script as Python does when a process ends, and the caches of torch.

    Not while one of its functions runs, in any thread: then nothing is done, and the answer is False. What finalizers
    print goes to stderr, for stdout may be waiting for a report.
    """
    modules = [*kept(), *_own()]
    spaces = {id(module.__dict__) for module in modules}
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            if id(frame.f_globals) in spaces:
                return False
            frame = frame.f_back
    with redirect_stdout(sys.stderr):
        sys.last_exc = sys.last_value = sys.last_traceback = None  # type: ignore[attr-defined]
        for module in modules:
            _empty(module)
        gc.collect()
        _caches()
        with suppress(OSError, AttributeError, TypeError):
            # glibc keeps what lies between two pieces that are still used.
            ctypes.CDLL(None).malloc_trim(0)
    return True


def _own() -> list[ModuleType]:
    """The modules that lie beside the script: what is installed stays, for others may use it."""
    paths = sysconfig.get_paths()
    installed = tuple(os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
    before = {id(module) for module in loaded_before()}
    homes = tuple(os.path.join(os.path.realpath(home), "") for home in _homes())
    found = []
    anything: list[Any] = list(sys.modules.values())
    for module in anything:
        file = getattr(module, "__file__", None)
        if isinstance(module, ModuleType) and isinstance(file, str) and id(module) not in before:
            path = os.path.realpath(file)
            if path.startswith(homes) and not path.startswith((*installed, ours)):
                found.append(module)
    return found


def _homes() -> list[str]:
    files = [getattr(main, "__file__", None) for main in kept()]
    return [os.path.dirname(os.path.abspath(file)) for file in files if isinstance(file, str)]


def _empty(module: ModuleType) -> None:
    """First the names that begin with an underscore, then the others, as `Py_FinalizeEx` does."""
    space = module.__dict__
    for private in (True, False):
        for name in list(space):
            if not name.startswith("__") and name.startswith("_") is private:
                space[name] = None


def _caches() -> None:
    """Of devices: what is free there, and kept for the next tensor."""
    torch = sys.modules.get("torch")
    for kind in ("cuda", "mps", "xpu"):
        device = getattr(torch, kind, None)
        with suppress(Exception):
            if kind == "mps" or device.is_initialized():  # type: ignore[union-attr]
                device.empty_cache()  # type: ignore[union-attr]
