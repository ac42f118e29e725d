"""Command line and `[tool.amp-doctor]` -> Settings; whatever is misspelt is refused with a suggestion."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_doctor import catalog
from amp_doctor.errors import ConfigError, SelectorError
from amp_doctor.finding import Severity
from amp_doctor.selection import Choice, checked_selector, chosen, matching

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("text", "concise", "json", "github", "sarif")
Ignores = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What one place says, key by key; None where it says nothing. The names are the keys, with underscores."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] | None = None
    extend_ignore: tuple[str, ...] | None = None
    per_file_ignores: Ignores | None = None
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] | None = None
    force_exclude: bool | None = None
    fail_on: Severity | None = None
    torch_version: tuple[int, ...] | None = None
    output_format: str | None = None
    jobs: int | None = None
    cache_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for the files under `root`. `file` is the configuration it was read from, if any.

    `excludes` are patterns in the syntax of .gitignore, each group with the directory it is relative to.
    """

    root: Path
    file: Path | None
    enabled: frozenset[str]
    per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = ()
    default_excludes: bool = True
    excludes: tuple[tuple[Path, tuple[str, ...]], ...] = ()
    force_exclude: bool = False
    fail_on: Severity = Severity.WARNING
    torch_version: tuple[int, ...] | None = None
    output_format: str = "text"
    jobs: int | None = None
    cache_dir: str | None = None

    def enabled_for(self, file: Path) -> frozenset[str]:
        """The codes that are on for `file`, an absolute path."""
        enabled = self.enabled
        for pattern, codes in self.per_file_ignores:
            if _covers(pattern, self.root, file):
                enabled -= codes
        return enabled


def resolve(root: Path, file: Path | None, below: Said, above: Said) -> Settings:
    """The settings that `below`, from a file, and `above`, from the command line, come to."""
    codes = catalog.codes()

    def first(key: str, default: Any) -> Any:
        values = (getattr(above, key), getattr(below, key))
        return next((value for value in values if value is not None), default)

    per_file: Ignores = first("per_file_ignores", ())
    return Settings(
        root=root,
        file=file,
        enabled=chosen(codes, [_choice(below), _choice(above)]),
        per_file_ignores=tuple((pattern, matching(selectors, codes)) for pattern, selectors in per_file),
        default_excludes=first("exclude", None) is None,
        excludes=_excludes(root, below, above),
        force_exclude=first("force_exclude", False),
        fail_on=first("fail_on", Severity.WARNING),
        torch_version=first("torch_version", None),
        output_format=first("output_format", "text"),
        jobs=first("jobs", None),
        cache_dir=above.cache_dir or (str(Path(root, below.cache_dir)) if below.cache_dir else None),
    )


class Configuration:
    """Where the settings of a directory come from: the command line and the nearest file, or the one named."""

    def __init__(self, said: Said | None = None, file: Path | None = None, isolated: bool = False) -> None:
        self._said = said or Said()
        self._file = file
        self._isolated = isolated
        self._known: dict[Path | None, Settings] = {}

    def settings_for(self, directory: Path) -> Settings:
        """What holds in `directory`, an absolute path."""
        file = self._file or (None if self._isolated else nearest(directory))
        if file not in self._known:
            below = read_config(file) if file else Said()
            self._known[file] = resolve(file.parent if file else Path.cwd(), file, below, self._said)
        return self._known[file]


@cache
def nearest(directory: Path) -> Path | None:
    """The nearest `pyproject.toml` with a `[tool.amp-doctor]` table, from `directory` (absolute) upward."""
    file = directory / "pyproject.toml"
    if has_table(file):
        return file
    return None if directory.parent == directory else nearest(directory.parent)


def has_table(file: Path) -> bool:
    """True when `file` has a `[tool.amp-doctor]` table; other projects' broken files are none of our business."""
    raw = _bytes(file)
    # Reading TOML costs ten times what looking for the word does, and most files do not have it.
    return raw is not None and b"amp-doctor" in raw and _table(file, raw) is not None


def read_config(file: Path) -> Said:
    """What the table in `file` says, a pyproject.toml or a TOML file of its own."""
    raw = _bytes(file)
    if raw is None:
        raise ConfigError(f"{file}: no such configuration file")
    table = _table(file, raw)
    if table is None:
        raise ConfigError(f"{file}: has no [tool.amp-doctor] table")
    return Said(**{key.replace("-", "_"): _value(file, key, value) for key, value in table.items()})


def torch_version(text: str) -> tuple[int, ...]:
    """`"2.4"` -> (2, 4)."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", text):
        raise ValueError(f'expected a version such as "2.4", not {text!r}')
    return tuple(int(part) for part in text.split("."))


def checked_codes(selectors: tuple[str, ...]) -> tuple[str, ...]:
    """The selectors in their usual spelling; SelectorError for one that no rule has."""
    return tuple(checked_selector(selector, catalog.codes()) for selector in selectors)


def _excludes(root: Path, below: Said, above: Said) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    written = below.extend_exclude or () if above.exclude else (*(below.exclude or ()), *(below.extend_exclude or ()))
    typed = (*(above.exclude or ()), *(above.extend_exclude or ()))
    return tuple((base, patterns) for base, patterns in ((root, written), (Path.cwd(), typed)) if patterns)


def _choice(said: Said) -> Choice:
    return Choice(said.select, said.ignore or (), said.extend_select or (), said.extend_ignore or ())


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error


def _table(file: Path, raw: bytes) -> dict[str, Any] | None:
    import tomllib  # noqa: PLC0415 - most runs have no configuration

    try:
        document = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    if file.name != "pyproject.toml" and "tool" not in document:
        return document
    tool = document.get("tool")
    table = tool.get("amp-doctor") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.amp-doctor must be a table")
    return table


def _value(file: Path, key: str, value: Any) -> Any:
    reader = _READERS.get(key)
    if reader is None:
        from difflib import get_close_matches  # noqa: PLC0415

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


def _severity(value: Any) -> Severity:
    return Severity(_one_of(*Severity)(value))


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
    "fail-on": _severity,
    "torch-version": _version,
    "output-format": _one_of(*FORMATS),
    "jobs": _jobs,
    "cache-dir": _typed(str, "a path"),
}
KEYS = tuple(field.name for field in fields(Said))


def _covers(pattern: str, root: Path, file: Path) -> bool:
    """True when a glob of per-file-ignores means `file`: by its name, or by its path below `root`."""
    if pattern.startswith("!"):
        return not _covers(pattern[1:], root, file)
    wanted = pattern.removeprefix("./")
    if wanted.endswith("/"):
        wanted += "*"
    inside = file.relative_to(root) if file.is_relative_to(root) else file
    # For fnmatch a star crosses slashes, so `**/` only has to be allowed to stand for nothing.
    spellings = {wanted, wanted.replace("**/", "")}
    return any(fnmatchcase(text, glob) for text in (file.name, inside.as_posix()) for glob in spellings)
