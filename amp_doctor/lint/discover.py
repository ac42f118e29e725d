"""Paths of the command line -> the files to lint, each once, and what could not be looked into."""

# A walk asks about thousands of paths, and Path objects would double its time.

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amp_doctor.lint.files import display, why_unreadable
from amp_doctor.lint.result import InputError

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
    return targets, sorted(set(found.errors), key=lambda error: (error.path, error.message))


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
    settings = found.configuration.settings_for(file if directory else os.path.dirname(file))
    if settings.force_exclude:
        from amp_doctor.lint.ignores import forced_out

        if forced_out(file, settings):
            return
    if directory:
        from amp_doctor.lint.walk import walk

        walk(file, "" if path == "." else path + "/", settings, found)
    else:
        found.add(file, path, settings, stat)
