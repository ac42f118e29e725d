"""Python programs that a script starts with subprocess: ranks of its own job are probed with it, the rest is named.

Lightning's `ddp` strategy runs the very same script once more per device. Such a process gets our runner before the
script and is a rank like any other: it stops at the same step, and its profile reaches rank 0 by the process group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import amp_doctor
from amp_doctor.probe.patches import Patches
from amp_doctor.probe.program import LAUNCHERS, Target
from amp_doctor.probe.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

# What a launcher tells its ranks by.
RANK_VARIABLES = ("LOCAL_RANK", "RANK")
# This package may not be installed where the script runs; its place goes last on the path, so that it hides nothing.
_CODE = "import sys; sys.path.append({home!r}); from amp_doctor.probe.programs import main; main()"


class Programs:
    """Wraps `subprocess.Popen`; `started` holds what is not probed, by the name of the program."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path: str | None = None
        self._module: str | None = None
        self._patches = Patches()
        self.started: dict[str, None] = {}

    def install(self, target: Target) -> None:
        """Look at the programs that are started from now on; `target` is what is about to run."""
        # The script may change directory.
        self._path = os.path.realpath(target.path) if target.path is not None else None
        self._module = target.module
        self._patches.wrap(subprocess.Popen, "__init__", self._init)

    def remove(self) -> None:
        """Look no more."""
        self._patches.undo()

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(process: Any, args: Any, *more: Any, **options: Any) -> None:
            words = args if isinstance(args, (list, tuple)) else str(args).split()
            texts = [os.fsdecode(word) if isinstance(word, (bytes, os.PathLike)) else str(word) for word in words]
            environment = options.get("env") or {}
            rest = self._again(texts) if any(name in environment for name in RANK_VARIABLES) else None
            if rest is not None:
                args = [sys.executable, "-c", self._code, self._message, *rest]
            elif texts and os.path.basename(texts[0]).startswith(LAUNCHERS):
                shown = [text for text in texts[1:] if not text.startswith("-")]
                self.started[shown[0] if shown else texts[0]] = None
            original(process, args, *more, **options)

        return init

    def _again(self, words: list[str]) -> list[str] | None:
        """The arguments in a command that runs this script once more; None for any other command."""
        if words[:1] != [sys.executable]:
            return None
        if self._module is not None:
            spec = getattr(sys.modules["__main__"], "__spec__", None)
            names = self._module, getattr(spec, "name", self._module)
            return words[3:] if words[1:2] == ["-m"] and len(words) > 2 and words[2] in names else None
        return words[2:] if len(words) > 1 and os.path.realpath(words[1]) == self._path else None

    @property
    def _code(self) -> str:
        return _CODE.format(home=os.path.dirname(os.path.dirname(os.path.abspath(amp_doctor.__file__))))

    @property
    def _message(self) -> str:
        """What the other process has to know."""
        return json.dumps({"path": self._path, "module": self._module, "settings": asdict(self._settings)})


def main() -> NoReturn:
    """The entry of such a process: `python -c ... MESSAGE ARGUMENTS...`."""
    from amp_doctor.probe.run import run_script

    told = json.loads(sys.argv[1])
    target = Target(told["path"], told["module"], tuple(sys.argv[2:]))
    settings = Settings(**{**told["settings"], "command": tuple(told["settings"]["command"])})
    sys.exit(
        run_script(
            target,
            settings,
            profile_file=None,
            scratch=None,
            # Rank 0, which reports, is the process that the user started.
            report=lambda _profile, status: status or 0,
            progress=None,
        )
    )
