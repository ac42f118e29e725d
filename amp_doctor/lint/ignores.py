"""Patterns in the syntax of .gitignore, where they stand, and which paths they keep out of a walk."""

# A walk asks about thousands of paths, and Path objects would double its time.

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.lint.files import DEFAULT_EXCLUDES, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pathspec import GitIgnoreSpec

    from amp_doctor.config import Settings


@dataclass(frozen=True, slots=True)
class Patterns:
    """The lines of one .gitignore, or of a setting; `base` is the directory they are relative to."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str, directory: bool) -> bool | None:
        """True to leave `path` out, False when a negated pattern keeps it, None when no pattern is about it."""
        if not path.startswith(self.base + os.sep):
            return None
        inside = path[len(self.base) + 1 :].replace(os.sep, "/")
        return self.spec.check_file(inside + "/" if directory else inside).include


def patterns(base: str, lines: Iterable[str]) -> Patterns | None:
    """None when no line says anything."""
    meant = [line for line in lines if line.strip() and not line.startswith("#")]
    if not meant:
        return None
    from pathspec import GitIgnoreSpec

    return Patterns(base.rstrip(os.sep), GitIgnoreSpec.from_lines(meant))


def gitignore(directory: str) -> Patterns | None:
    """The .gitignore of `directory`."""
    try:
        raw = read_bytes(os.path.join(directory, ".gitignore"))
    except ReadError:
        return None
    return patterns(directory, raw.decode(errors="surrogateescape").splitlines())


def ignored(chain: tuple[Patterns, ...], path: str, directory: bool) -> bool:
    """What the last .gitignore of `chain` that has an opinion says."""
    for file in reversed(chain):
        verdict = file.verdict(path, directory)
        if verdict is not None:
            return verdict
    return False


def inherited(top: str) -> tuple[Patterns, ...]:
    """The .gitignore files above `top` in its repository.

    None of them when they leave `top` itself out: who names an ignored directory wants it linted.
    """
    above: list[str] = []
    for directory in _upward(top):
        if directory != top:
            above.append(directory)
        if os.path.exists(os.path.join(directory, ".git")):
            break
    else:
        return ()
    found = (gitignore(directory) for directory in reversed(above) if os.path.exists(f"{directory}/.gitignore"))
    chain = tuple(file for file in found if file is not None)
    hidden = any(ignored(chain, directory, directory=True) for directory in [top, *above[:-1]])
    return () if hidden else chain


def excludes(settings: Settings) -> tuple[Patterns, ...]:
    """The patterns that the settings exclude."""
    found = (patterns(base, lines) for base, lines in settings.excludes)
    return tuple(file for file in found if file is not None)


def forced_out(file: str, settings: Settings) -> bool:
    """True when `--force-exclude` applies to `file`: it, or a directory it is in, is excluded."""
    chain = excludes(settings)
    root = settings.root
    for path in (file, *_upward(os.path.dirname(file))):
        if path == root or not path.startswith(root.rstrip(os.sep) + os.sep):
            return False
        if settings.default_excludes and os.path.basename(path) in DEFAULT_EXCLUDES:
            return True
        if ignored(chain, path, directory=path != file or os.path.isdir(file)):
            return True
    return False


def _upward(directory: str) -> Iterator[str]:
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent
