"""Paths of the command line -> the files to lint, each once, and what could not be looked into."""

# A walk asks about thousands of paths, and Path objects would double its time.
# ruff: noqa: PTH100, PTH112, PTH116, PTH120

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.config import has_table
from amp_doctor.lint.ignores import DEFAULT_EXCLUDES, Patterns, excludes, forced_out, gitignore, ignored, inherited
from amp_doctor.lint.result import InputError
from amp_doctor.lint.source import SUFFIXES, display, why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.config import Configuration, Settings


@dataclass(frozen=True, slots=True)
class Target:
    """A file to lint: `file` is its absolute path, `path` how reports name it; time and size are for the cache."""

    file: str
    path: str
    settings: Settings
    mtime_ns: int
    size: int


@dataclass(slots=True)
class Found:
    """What the walk has gathered so far."""

    configuration: Configuration
    targets: dict[str, Target] = field(default_factory=dict)
    links: dict[str, Target] = field(default_factory=dict)
    errors: list[InputError] = field(default_factory=list)

    def add(self, file: str, path: str, settings: Settings, stat: os.stat_result, linked: bool = False) -> None:
        """Remember a file; links wait until the files they may point at are known."""
        target = Target(file, path, settings, stat.st_mtime_ns, stat.st_size)
        (self.links if linked else self.targets)[file] = target

    def failed(self, path: str, message: str) -> None:
        """Remember something that could not be read."""
        self.errors.append(InputError(path, message))


@dataclass(frozen=True, slots=True)
class Walk:
    """What holds in the directory that is being listed."""

    settings: Settings
    gitignores: tuple[Patterns, ...]
    excluded: tuple[Patterns, ...]

    def skips(self, path: str, directory: bool) -> bool:
        """True when a pattern leaves `path` out."""
        return (bool(self.excluded) and ignored(self.excluded, path, directory)) or (
            bool(self.gitignores) and ignored(self.gitignores, path, directory)
        )


def discover(paths: Iterable[str], configuration: Configuration) -> tuple[list[Target], list[InputError]]:
    """The files under `paths`, sorted; a path that is itself a file is taken as Python whatever its name."""
    found = Found(configuration)
    for path in paths:
        _argument(path, found)
    seen = set(found.targets)
    for file, target in found.links.items():
        # A link to a file that is linted anyway would report everything twice.
        real = os.path.realpath(file)
        if real not in seen:
            seen.add(real)
            found.targets.setdefault(file, target)
    targets = sorted(found.targets.values(), key=lambda target: target.path)
    return targets, sorted(set(found.errors))


def _argument(argument: str, found: Found) -> None:
    file = os.path.abspath(argument)
    path = display(file)
    try:
        stat = os.stat(file)
    except OSError as error:
        reason = "no such file or directory" if not os.path.lexists(file) else why_unreadable(file, error)
        found.failed(path, reason)
        return
    directory = os.path.isdir(file)
    settings = found.configuration.settings_for(Path(file if directory else os.path.dirname(file)))
    if settings.force_exclude and forced_out(file, settings):
        return
    if directory:
        walk = Walk(settings, inherited(file), excludes(settings))
        _walk(file, "" if path == "." else path + "/", walk, found)
    else:
        found.add(file, path, settings, stat)


def _walk(directory: str, prefix: str, walk: Walk, found: Found) -> None:
    """Add what lies in `directory`; links to directories are not followed, so there are no loops."""
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError as error:
        found.failed(prefix.rstrip("/") or ".", why_unreadable(directory, error))
        return
    names = {entry.name for entry in listed}
    walk = _entered(directory, names, walk, found)
    defaults = DEFAULT_EXCLUDES if walk.settings.default_excludes else frozenset[str]()
    for entry in listed:
        name = entry.name
        if name in defaults:
            continue
        if name.endswith(SUFFIXES):
            if entry.is_dir(follow_symlinks=False):
                _descend(entry, prefix, walk, found)
            elif not name.startswith(".#"):  # Emacs locks a file by such a link that leads nowhere
                _file(entry, prefix, walk, found)
        elif entry.is_dir(follow_symlinks=False):
            _descend(entry, prefix, walk, found)


def _entered(directory: str, names: set[str], walk: Walk, found: Found) -> Walk:
    """`walk` with what the files of `directory` say about it."""
    settings, gitignores, excluded = walk.settings, walk.gitignores, walk.excluded
    if "pyproject.toml" in names and has_table(Path(directory, "pyproject.toml")):
        settings = found.configuration.settings_for(Path(directory))
        if settings is not walk.settings:
            excluded = excludes(settings)
    if ".gitignore" in names and (own := gitignore(directory)) is not None:
        gitignores = (*gitignores, own)
    return Walk(settings, gitignores, excluded)


def _descend(entry: os.DirEntry[str], prefix: str, walk: Walk, found: Found) -> None:
    if not walk.skips(entry.path, directory=True):
        _walk(entry.path, f"{prefix}{entry.name}/", walk, found)


def _file(entry: os.DirEntry[str], prefix: str, walk: Walk, found: Found) -> None:
    path = prefix + entry.name
    if (walk.gitignores or walk.excluded) and walk.skips(entry.path, directory=False):
        return
    try:
        linked = entry.is_symlink()
        stat = entry.stat()
        # A pipe or a device that happens to be called so would block the reading.
        if entry.is_file():
            found.add(entry.path, path, walk.settings, stat, linked)
    except OSError as error:
        found.failed(path, why_unreadable(entry.path, error))
