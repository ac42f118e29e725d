"""What earlier runs found, in one JSON file; valid while tool, settings and the files read together are the same.

JSON and not pickle: a cache that came with a repository must not be able to run code.
"""

# Thousands of files are asked about, and Path objects would double the time of a run that finds all in the cache.

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amp_doctor import __version__
from amp_doctor.errors import ReadError
from amp_doctor.lint.files import display, read_bytes
from amp_doctor.lint.result import FileReport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.lint.discover import Target

FILE = "lint.json"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of amp-doctor, see https://bford.info/cachedir/\n"

# [mtime, size, parsed] of a file that is not gated; a gated one has its digest, the key, the files
# it depends on, each with time, size and digest, and the report besides.
Entry = list[Any]


class Cache:
    """The reports of earlier runs by file; `save` writes what has changed."""

    def __init__(self, directory: str, targets: Iterable[Target], roots: Iterable[str]) -> None:
        self.hits = 0
        self.directory = directory
        self._file = os.path.join(directory, FILE)
        self._root = os.path.dirname(directory).rstrip(os.sep) + os.sep
        self._stamp = _stamp()
        self._stats: dict[str, tuple[int, int] | None] = {}
        self._visited: set[str] = set()
        # What reports depend on besides files: the torch version, and which modules an import may find.
        self._modules = _digest("\n".join([*roots, "", *(target.file for target in targets)]).encode(errors="replace"))
        self._entries, self._changed = self._load()

    def get(self, target: Target, parse: bool) -> FileReport | None:
        """The report on `target` if nothing that it rests on has changed; `parse` if its syntax must be known."""
        name = self._name(target.file)
        self._visited.add(name)
        entry = self._entries.get(name)
        try:
            report = None if entry is None else self._valid(entry, target, parse)
        except (LookupError, TypeError, ValueError):
            return None  # written by somebody else
        self.hits += report is not None
        return report

    def _valid(self, entry: Entry, target: Target, parse: bool) -> FileReport | None:
        same = entry[0] == target.mtime_ns and entry[1] == target.size
        if len(entry) == 3:
            return FileReport(target.path) if same and entry[2] >= parse else None
        if entry[4] != self._key(target):
            return None
        if not same:
            if entry[1] != target.size or _digest_of(target.file) != entry[3]:
                return None
            entry[0], self._changed = target.mtime_ns, True
        if not all(self._unchanged(dependency) for dependency in entry[5]):
            return None
        from amp_doctor.lint.plain import from_plain

        return from_plain(target.path, entry[6], lambda name: display(self._path(name)))

    def _unchanged(self, dependency: list[Any]) -> bool:
        name, mtime_ns, size, digest = dependency
        file = self._path(name)
        if file not in self._stats:
            try:
                stat = os.stat(file)
                self._stats[file] = (stat.st_mtime_ns, stat.st_size)
            except OSError:
                self._stats[file] = None
        found = self._stats[file]
        if found is None or found[1] != size:
            return False
        if found[0] != mtime_ns:
            if _digest_of(file) != digest:
                return False
            dependency[1], self._changed = found[0], True
        return True

    def put(self, target: Target, raw: bytes | None, report: FileReport, parsed: bool) -> None:
        """Remember a report; `raw` is None for a file that is not gated. What may be better next time is not kept."""
        if report.error is not None or not report.lasting:
            return
        name = self._name(target.file)
        entry: Entry = [target.mtime_ns, target.size, int(parsed)]
        if raw is not None or report.findings:
            from amp_doctor.lint.plain import to_plain

            watched = []
            for path in report.dependencies:
                file = os.path.abspath(path)
                try:
                    stat = os.stat(file)
                except OSError:
                    return
                watched.append([self._name(file), stat.st_mtime_ns, stat.st_size, _digest_of(file)])
            entry += [
                _digest(raw or b""),
                self._key(target),
                watched,
                to_plain(report, lambda path: self._name(os.path.abspath(path))),
            ]
        self._entries[name] = entry
        self._changed = True

    def save(self) -> None:
        """Write the cache if it has changed; a place that cannot be written to is no reason to complain."""
        if not self._changed:
            return
        kept = {
            name: entry
            for name, entry in self._entries.items()
            if name in self._visited or os.path.lexists(self._path(name))
        }
        document = {"stamp": self._stamp, "content": _content(), "entries": kept}
        temporary = f"{self._file}.{os.getpid()}"
        with suppress(OSError, UnicodeError):
            if not os.path.isdir(self.directory):
                os.makedirs(self.directory)
                _write(os.path.join(self.directory, ".gitignore"), "*\n")
                _write(os.path.join(self.directory, "CACHEDIR.TAG"), _TAG)
            try:
                _write(temporary, json.dumps(document, separators=(",", ":")))
                os.replace(temporary, self._file)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)

    def _load(self) -> tuple[dict[str, Entry], bool]:
        try:
            document = json.loads(read_bytes(self._file))
            entries = document["entries"]
            if not isinstance(entries, dict) or (
                document["stamp"] != self._stamp and document["content"] != _content()
            ):
                return {}, False
            return entries, document["stamp"] != self._stamp
        except (ReadError, ValueError, LookupError, TypeError, RecursionError):
            return {}, False

    def _key(self, target: Target) -> str:
        return f"{target.settings.torch_version} {self._modules}"

    def _name(self, file: str) -> str:
        return file[len(self._root) :] if file.startswith(self._root) else file

    def _path(self, name: str) -> str:
        return name if os.path.isabs(name) else self._root + name


def _write(file: str, text: str) -> None:
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text)


def _own_files() -> list[str]:
    package = os.path.dirname(os.path.dirname(__file__))
    # In a checkout the pages lie beside the package, in an installation inside.
    folders = [package, os.path.join(os.path.dirname(package), "rules")]
    found = []
    for folder in folders:
        for directory, _, names in os.walk(folder):
            found += [os.path.join(directory, name) for name in names if name.endswith((".py", ".md"))]
    return sorted(found)


def _stamp() -> str:
    """Changes whenever a file of the tool does; cheap, and told by the file system alone."""
    from hashlib import blake2b

    digest = blake2b(f"{__version__} {sys.version}".encode(), digest_size=16)
    for file in _own_files():
        stat = os.stat(file)
        digest.update(f"{file} {stat.st_mtime_ns} {stat.st_size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _content() -> str:
    """Changes only when what the files of the tool say does, so a fresh installation keeps the cache of a CI run."""
    from hashlib import blake2b

    digest = blake2b(f"{__version__} {sys.version}".encode(), digest_size=16)
    for file in _own_files():
        digest.update(os.path.basename(file).encode() + b"\0" + read_bytes(file))
    return digest.hexdigest()


def _digest(raw: bytes) -> str:
    from hashlib import blake2b

    return blake2b(raw, digest_size=16).hexdigest()


def _digest_of(file: str) -> str | None:
    try:
        return _digest(read_bytes(file))
    except ReadError:
        return None
