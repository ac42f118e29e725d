"""Checkpoints that the script writes while it is probed, above all those on its way out."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amp_doctor.probe.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was saved; `late` after the stop, `replaced` when there was one of that name."""

    path: str
    late: bool
    replaced: bool


class Writes:
    """Wraps `torch.save` and `safetensors.torch.save_file`; `stopped` tells whether the script is on its way out."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._patches = Patches()
        self.files: list[Written] = []

    def watch_torch(self) -> None:
        """When torch has been imported."""
        for owner in (sys.modules["torch.serialization"], sys.modules["torch"]):
            self._patches.wrap(owner, "save", self._saving(1, "f"))

    def watch_safetensors(self) -> None:
        """When safetensors.torch has been imported."""
        self._patches.wrap(sys.modules["safetensors.torch"], "save_file", self._saving(1, "filename"))

    def remove(self) -> None:
        """Give the functions back."""
        self._patches.undo()

    def notes(self) -> list[str]:
        """What the profile says about the files."""
        early = list(dict.fromkeys(one.path for one in self.files if not one.late))
        late = {one.path: one for one in self.files if one.late}
        notes = []
        if early:
            notes.append(f"the script saved {_listed(early)} while it was probed")
        for path, one in list(late.items())[:SHOWN]:
            lost = " The file that was there before is gone." if one.replaced and path not in early else ""
            notes.append(f"WARNING: on its way out the stopped script saved {path}, after these few steps.{lost}")
        if len(late) > SHOWN:
            notes.append(f"WARNING: on its way out the stopped script saved {len(late)} files in all")
        return notes

    def _saving(self, position: int, keyword: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def save(*args: Any, **kwargs: Any) -> Any:
                target = args[position] if len(args) > position else kwargs.get(keyword)
                path = _path_of(target)
                replaced = isinstance(target, (str, os.PathLike)) and os.path.exists(target)
                result = original(*args, **kwargs)
                if path is not None:
                    self.files.append(Written(path, self._stopped(), replaced))
                return result

            return save

        return make


def _path_of(target: object) -> str | None:
    """The name of a file given by path or as an open file; None for a buffer."""
    if isinstance(target, (str, os.PathLike)):
        return os.fsdecode(target)
    name = getattr(target, "name", None)
    return name if isinstance(name, str) else None


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN} more files" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more
