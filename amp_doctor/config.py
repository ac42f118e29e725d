"""Command line and `[tool.amp-doctor]` -> Settings; whatever is misspelt is refused with a suggestion.

Every run passes here, most of them without a configuration file, so what only some need is loaded late, and
paths are strings: pathlib alone takes a tenth of a run on one small file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from amp_doctor.errors import ConfigError, SelectorError

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("text", "concise", "json", "github", "sarif")
SEVERITIES = ("error", "warning", "note")

Ignores = tuple[tuple[str, tuple[str, ...]], ...]


class Said(TypedDict, total=False):
    """What one place, the command line or a file, says; the names are the keys, with underscores."""

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    extend_select: tuple[str, ...]
    extend_ignore: tuple[str, ...]
    per_file_ignores: Ignores
    exclude: tuple[str, ...]
    extend_exclude: tuple[str, ...]
    force_exclude: bool
    fail_on: str
    torch_version: tuple[int, ...]
    output_format: str
    jobs: int
    cache_dir: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for the files under `root`. `file` is the configuration it was read from, if any.

    `below` is what that file says, `above` what the command line says and what therefore wins. `excludes`
    are patterns in the syntax of .gitignore, each group with the directory it is relative to.
    """

    root: str
    file: str | None
    below: Said
    above: Said
    default_excludes: bool
    excludes: tuple[tuple[str, tuple[str, ...]], ...]
    cache_dir: str | None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key that has one value."""
        return self.above.get(key, self.below.get(key, default))

    @property
    def torch_version(self) -> tuple[int, ...] | None:
        """The version the code is for, if it was said."""
        version: tuple[int, ...] | None = self.get("torch_version")
        return version

    @property
    def force_exclude(self) -> bool:
        """Whether excludes hold for files that are named on the command line as well."""
        return bool(self.get("force_exclude", default=False))

    def enabled_for(self, file: str) -> frozenset[str]:
        """The codes that are on for `file`, an absolute path."""
        from amp_doctor import catalog
        from amp_doctor.selection import Choice, chosen, covers, matching

        codes = catalog.codes()
        choices = [
            Choice(
                said.get("select"),
                said.get("ignore", ()),
                said.get("extend_select", ()),
                said.get("extend_ignore", ()),
            )
            for said in (self.below, self.above)
        ]
        enabled = chosen(codes, choices)
        ignores: Ignores = self.get("per_file_ignores", ())
        for pattern, selectors in ignores:
            if covers(pattern, self.root, file):
                enabled -= matching(selectors, codes)
        return enabled


class Configuration:
    """Where the settings of a directory come from: the command line and the nearest file, or the one named."""

    def __init__(self, said: Said | None = None, file: str | None = None, isolated: bool = False) -> None:
        self._said = said or Said()
        self._file = file
        self._isolated = isolated
        self._known: dict[str | None, Settings] = {}

    @property
    def searches(self) -> bool:
        """Whether the files in the directories have a say: not when one was named or none is wanted."""
        return self._file is None and not self._isolated

    def settings_for(self, directory: str) -> Settings:
        """What holds in `directory`, an absolute path."""
        file = nearest(directory) if self.searches else self._file
        if file not in self._known:
            below = read_config(file) if file else Said()
            self._known[file] = resolve(os.path.dirname(file) if file else os.getcwd(), file, below, self._said)
        return self._known[file]


def resolve(root: str, file: str | None, below: Said, above: Said) -> Settings:
    """The settings that `below`, from a file, and `above`, from the command line, come to."""
    written = () if "exclude" in above else below.get("exclude", ())
    groups = (
        (root, (*written, *below.get("extend_exclude", ()))),
        (os.getcwd(), (*above.get("exclude", ()), *above.get("extend_exclude", ()))),
    )
    cache_dir = os.path.join(root, below["cache_dir"]) if "cache_dir" in below else None
    return Settings(
        root=root,
        file=file,
        below=below,
        above=above,
        default_excludes="exclude" not in above and "exclude" not in below,
        excludes=tuple((base, patterns) for base, patterns in groups if patterns),
        cache_dir=os.path.abspath(above["cache_dir"]) if "cache_dir" in above else cache_dir,
    )


@cache
def nearest(directory: str) -> str | None:
    """The nearest `pyproject.toml` with a `[tool.amp-doctor]` table, from `directory` (absolute) upward."""
    file = os.path.join(directory, "pyproject.toml")
    if has_table(file):
        return file
    parent = os.path.dirname(directory)
    return None if parent == directory else nearest(parent)


def has_table(file: str) -> bool:
    """True when `file` has a `[tool.amp-doctor]` table; other projects' broken files are none of our business."""
    raw = _bytes(file)
    # Reading TOML costs ten times what looking for the word does, and most files do not have it.
    return raw is not None and b"amp-doctor" in raw and _table(file, raw) is not None


def read_config(file: str) -> Said:
    """What the table in `file` says, a pyproject.toml or a TOML file of its own."""
    raw = _bytes(file)
    if raw is None:
        raise ConfigError(f"{file}: no such configuration file")
    table = _table(file, raw)
    if table is None:
        raise ConfigError(f"{file}: has no [tool.amp-doctor] table")
    said = Said()
    said.update({key.replace("-", "_"): _value(file, key, value) for key, value in table.items()})  # type: ignore[typeddict-item]
    return said


def torch_version(text: str) -> tuple[int, ...]:
    """`"2.4"` -> (2, 4)."""
    parts = text.split(".")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f'expected a version such as "2.4", not {text!r}')
    return tuple(int(part) for part in parts)


def checked_codes(selectors: tuple[str, ...]) -> tuple[str, ...]:
    """The selectors in their usual spelling; SelectorError for one that no rule has."""
    from amp_doctor import catalog
    from amp_doctor.selection import checked_selector

    return tuple(checked_selector(selector, catalog.codes()) for selector in selectors)


def _bytes(file: str) -> bytes | None:
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error


def _table(file: str, raw: bytes) -> dict[str, Any] | None:
    import tomllib

    try:
        document = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    if os.path.basename(file) != "pyproject.toml" and "tool" not in document:
        return document
    tool = document.get("tool")
    table = tool.get("amp-doctor") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.amp-doctor must be a table")
    return table


def _value(file: str, key: str, value: Any) -> Any:
    reader = _READERS.get(key)
    if reader is None:
        from difflib import get_close_matches

        close = get_close_matches(key.replace("_", "-"), _READERS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(sorted(_READERS))}"
        raise ConfigError(f"{file}: [tool.amp-doctor] has no key {key!r}; {hint}")
    try:
        return reader(value)
    except (SelectorError, ValueError) as error:
        raise ConfigError(f"{file}: [tool.amp-doctor] {key}: {error}") from error


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected a list of strings, not {value!r}")
    return tuple(value)


def _selectors(value: Any) -> tuple[str, ...]:
    return checked_codes(_strings(value))


def _per_file(value: Any) -> Ignores:
    if not isinstance(value, dict):
        raise ValueError(f'expected a table such as {{"tests/*" = ["AMP2"]}}, not {value!r}')
    return tuple((pattern, _selectors(listed)) for pattern, listed in value.items())


def _typed(kind: type, words: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"expected {words}, not {value!r}")
        return value

    return read


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}, not {value!r}")
        return str(value)

    return read


def _version(value: Any) -> tuple[int, ...]:
    return torch_version(_typed(str, 'a string such as "2.4"')(value))


def _jobs(value: Any) -> int:
    if _typed(int, "a number of processes")(value) < 1:
        raise ValueError(f"expected a number of processes from 1, not {value}")
    return int(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "select": _selectors,
    "ignore": _selectors,
    "extend-select": _selectors,
    "extend-ignore": _selectors,
    "per-file-ignores": _per_file,
    "exclude": _strings,
    "extend-exclude": _strings,
    "force-exclude": _typed(bool, "true or false"),
    "fail-on": _one_of(*SEVERITIES),
    "torch-version": _version,
    "output-format": _one_of(*FORMATS),
    "jobs": _jobs,
    "cache-dir": _typed(str, "a path"),
}
KEYS = tuple(key.replace("-", "_") for key in _READERS)
