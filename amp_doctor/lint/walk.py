"""A directory -> the Python files in it that nothing excludes, told to `Found`."""

# A walk asks about thousands of paths, and Path objects would double its time.

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.config import has_table
from amp_doctor.lint.files import DEFAULT_EXCLUDES, SUFFIXES, why_unreadable
from amp_doctor.lint.ignores import Patterns, excludes, gitignore, ignored, inherited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.config import Settings
    from amp_doctor.lint.discover import Found


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, what stands before its names in reports, and what holds in it."""

    directory: str
    prefix: str
    settings: Settings
    gitignores: tuple[Patterns, ...]
    excluded: tuple[Patterns, ...]

    def skips(self, path: str, directory: bool) -> bool:
        """True when a pattern leaves `path` out."""
        return (bool(self.excluded) and ignored(self.excluded, path, directory)) or (
            bool(self.gitignores) and ignored(self.gitignores, path, directory)
        )


def walk(top: str, prefix: str, settings: Settings, found: Found) -> None:
    """Tell `found` of every file below `top`; links to directories are not followed, so there are no loops."""
    waiting = [Place(top, prefix, settings, inherited(top), excludes(settings))]
    while waiting:
        waiting += _listed(waiting.pop(), found)


def _listed(place: Place, found: Found) -> Iterator[Place]:
    """Add the files of a directory; its directories come back."""
    try:
        with os.scandir(place.directory) as entries:
            listed = list(entries)
    except OSError as error:
        found.failed(place.prefix.rstrip("/") or ".", why_unreadable(place.directory, error))
        return
    place = _entered(place, {entry.name for entry in listed}, found)
    defaults = DEFAULT_EXCLUDES if place.settings.default_excludes else frozenset[str]()
    for entry in listed:
        name = entry.name
        if name in defaults:
            continue
        if entry.is_dir(follow_symlinks=False):
            if not place.skips(entry.path, directory=True):
                inside = f"{place.prefix}{name}/"
                yield Place(entry.path, inside, place.settings, place.gitignores, place.excluded)
        elif name.endswith(SUFFIXES) and not name.startswith(".#"):  # how Emacs locks a file: a link to nowhere
            _add(entry, place, found)


def _entered(place: Place, names: set[str], found: Found) -> Place:
    """`place` with what the files in it say about it."""
    settings, gitignores, excluded = place.settings, place.gitignores, place.excluded
    searched = found.configuration.searches and "pyproject.toml" in names
    if searched and has_table(os.path.join(place.directory, "pyproject.toml")):
        settings = found.configuration.settings_for(place.directory)
        if settings is not place.settings:
            excluded = excludes(settings)
    if ".gitignore" in names and (own := gitignore(place.directory)) is not None:
        gitignores = (*gitignores, own)
    return Place(place.directory, place.prefix, settings, gitignores, excluded)


def _add(entry: os.DirEntry[str], place: Place, found: Found) -> None:
    if (place.gitignores or place.excluded) and place.skips(entry.path, directory=False):
        return
    path = place.prefix + entry.name
    try:
        linked = entry.is_symlink()
        stat = entry.stat()
        # A pipe or a device that happens to be called so would block the reading.
        if entry.is_file():
            found.add(entry.path, path, place.settings, stat, linked)
    except OSError as error:
        found.failed(path, why_unreadable(entry.path, error))
