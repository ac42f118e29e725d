"""`--scratch DIR`: the script runs in a copy of the working directory, and leaves the original as it was."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.relocated import relocated
from amp_doctor.errors import ScriptError

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile, Source
    from amp_doctor.probe.program import Target

# Larger files are linked to instead of copied, where the file system cannot share their blocks.
LARGE = 100 * 2**20
CHECKPOINTS = (".bin", ".ckpt", ".pt", ".pth", ".safetensors")
SKIPPED = (".git", ".hg", "__pycache__")
SHOWN = 10
# Linux: let two files share their blocks until one of them is written (btrfs, XFS, bcachefs).
_FICLONE = 0x40049409


@dataclass(slots=True)
class Copied:
    """What was copied: path in the copy -> size and time; and what was only linked, or could not be read."""

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    linked: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


class Scratch:
    """A copy of the working directory, made at once; `enter` moves the process into it, `leave` moves it back."""

    def __init__(self, directory: str) -> None:
        self.origin = os.getcwd()
        home = os.path.abspath(directory)
        try:
            os.makedirs(home, exist_ok=True)
            self.copy = _fresh(os.path.join(os.path.realpath(home), os.path.basename(self.origin) or "root"))
            self._copied = Copied()
            _copy_tree(self.origin, self.copy, os.path.realpath(home), self._copied)
        except OSError as error:
            raise ScriptError(f"--scratch {directory}: {error.strerror or error}") from error
        self._bytecode = sys.dont_write_bytecode
        self._environment: dict[str, str | None] = {}
        self._path = sys.path[:]

    def mapped(self, path: str) -> str:
        """Where `path` lies in the copy; `path` itself when it does not lie there, or is relative."""
        for origin in (self.origin, os.path.realpath(self.origin)):
            if path == origin or path.startswith(origin + os.sep):
                moved = self.copy + path[len(origin) :]
                return moved if os.path.lexists(moved) else path
        return path

    def target(self, target: Target) -> Target:
        """The script in the copy; what lies elsewhere stays where it is, under its full path."""
        if target.path is None:
            return target
        full = os.path.normpath(os.path.join(self.origin, target.path))
        moved = self.mapped(full)
        relative = moved != full and not os.path.isabs(target.path)
        return target if relative else replace(target, path=moved)

    def enter(self) -> None:
        """Make the copy the working directory; modules of the original write no bytecode beside themselves."""
        self._path = sys.path[:]
        os.chdir(self.copy)
        sys.path[:] = [self.mapped(entry) for entry in sys.path]
        sys.dont_write_bytecode = True
        for name, value in (("PWD", self.copy), ("PYTHONDONTWRITEBYTECODE", "1")):
            self._environment[name] = os.environ.get(name)
            os.environ[name] = value
        process = sys.modules.get("multiprocessing.process")
        if process is not None and getattr(process, "ORIGINAL_DIR", None) == self.origin:
            process.ORIGINAL_DIR = self.copy  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Back to where we were."""
        with suppress(OSError):
            os.chdir(self.origin)
        sys.path[:] = self._path
        sys.dont_write_bytecode = self._bytecode
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        process = sys.modules.get("multiprocessing.process")
        if process is not None and getattr(process, "ORIGINAL_DIR", None) == self.copy:
            process.ORIGINAL_DIR = self.origin  # type: ignore[attr-defined]

    def told(self, profile: Profile) -> Profile:
        """The profile with the paths of the original, and with notes about what the script did in the copy."""
        told = relocated(profile, self._original)
        return replace(told, notes=(*told.notes, *self.notes()))

    def _original(self, source: Source) -> Source:
        inside = source.path.startswith(self.copy + os.sep)
        return replace(source, path=self.origin + source.path[len(self.copy) :]) if inside else source

    def notes(self) -> list[str]:
        """What was done, for the profile."""
        new, changed, gone = self._differences()
        notes = [f"the script ran in a copy of the working directory: {self.copy}"]
        for word, paths in (("created", new), ("changed", changed), ("removed", gone)):
            if paths:
                notes.append(f"{word} there: {_listed(paths)}")
        if self._copied.linked:
            notes.append(f"too large to copy and only linked to: {_listed(self._copied.linked)}")
        if self._copied.unread:
            notes.append(f"could not be copied: {_listed(self._copied.unread)}")
        return notes

    def _differences(self) -> tuple[list[str], list[str], list[str]]:
        before, now = self._copied.files, dict[str, tuple[int, int]]()
        for where, directories, files in os.walk(self.copy):
            directories[:] = [name for name in directories if name not in SKIPPED]
            for name in files:
                path = os.path.join(where, name)
                with suppress(OSError):
                    now[os.path.relpath(path, self.copy)] = _state(path)
        changed = [path for path in now if path in before and now[path] != before[path]]
        return sorted(now.keys() - before.keys()), sorted(changed), sorted(before.keys() - now.keys())


def _fresh(path: str) -> str:
    """`path`, or the first of `path-2`, `path-3`... that does not exist yet; it is created."""
    number, tried = 1, path
    while True:
        try:
            os.mkdir(tried)
        except FileExistsError:
            number += 1
            tried = f"{path}-{number}"
        else:
            return tried


def _copy_tree(origin: str, copy: str, home: str, copied: Copied) -> None:
    top = copy
    pairs = [(origin, copy)]
    while pairs:
        source, target = pairs.pop()
        for entry in os.scandir(source):
            to = os.path.join(target, entry.name)
            name = os.path.relpath(to, top)
            try:
                if entry.is_symlink():
                    _copy_link(entry.path, to, origin)
                elif entry.is_dir():
                    if not _left_out(entry, home):
                        os.mkdir(to)
                        pairs.append((entry.path, to))
                    continue
                elif not stat.S_ISREG(entry.stat().st_mode):
                    continue
                elif not _copy_file(entry.path, to):
                    copied.linked.append(name)
                copied.files[name] = _state(to)
            except OSError:
                copied.unread.append(name)


def _left_out(entry: os.DirEntry[str], home: str) -> bool:
    return (
        entry.name in SKIPPED
        or os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
        or os.path.realpath(entry.path) == home
    )


def _copy_link(path: str, to: str, origin: str) -> None:
    """A link stays one; what leads out of the directory by a relative path is made absolute."""
    goal = os.readlink(path)
    full = os.path.normpath(os.path.join(os.path.dirname(path), goal))
    inside = full == origin or full.startswith(origin + os.sep)
    os.symlink(goal if os.path.isabs(goal) or inside else full, to)


def _copy_file(path: str, to: str) -> bool:
    """Share the blocks, else copy, else (a large file that is no checkpoint) link; False says that it was linked."""
    if _shared(path, to):
        shutil.copystat(path, to)
        return True
    if os.path.getsize(path) > LARGE and not path.endswith(CHECKPOINTS):
        os.symlink(os.path.realpath(path), to)
        return False
    shutil.copy2(path, to)
    return True


def _shared(path: str, to: str) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        with open(path, "rb") as source, open(to, "wb") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        with suppress(OSError):
            os.unlink(to)
        return False
    return True


def _state(path: str) -> tuple[int, int]:
    found = os.stat(path, follow_symlinks=False)
    return found.st_size, found.st_mtime_ns


def _listed(paths: list[str]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(paths[:SHOWN]) + more
