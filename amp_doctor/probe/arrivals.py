"""Calls us back when a module has been imported, so that nothing is imported before the script does it.

A script may set the environment before `import torch` (OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES); if we imported torch
first, that would come too late.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Arrivals:
    """A finder before all others that only watches; each callback is called once."""

    def __init__(self, callbacks: Mapping[str, Callable[[], None]]) -> None:
        self._waiting = dict(callbacks)
        self._busy: set[str] = set()

    def install(self) -> None:
        """Call for what is loaded already, and watch for the rest."""
        sys.meta_path.insert(0, self)
        for name in list(self._waiting):
            if name in sys.modules:
                self.arrived(name)

    def remove(self) -> None:
        """Watch no more; twice is once."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._waiting.clear()

    def arrived(self, name: str) -> None:
        """The module of that name has been executed."""
        callback = self._waiting.pop(name, None)
        if callback is not None:
            callback()

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """What the other finders find, with a loader that tells us."""
        if name not in self._waiting or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self)  # type: ignore[assignment]
        return spec


class _Telling:
    """Loads as the real loader does, which takes its place again afterwards."""

    def __init__(self, loader: Any, arrivals: Arrivals) -> None:
        self._loader, self._arrivals = loader, arrivals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """What the real loader creates."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, and tell."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._arrivals.arrived(module.__name__)
