"""`rules/*.md` -> Page: every code the tool can say, its name, its metadata and its examples.

The names come from the file names alone; a page is parsed when somebody asks for it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from amp_doctor.errors import AmpDoctorError, SelectorError
from amp_doctor.finding import Severity

URL = "https://github.com/amp-doctor/amp-doctor/blob/main/rules/"

_FILE = re.compile(r"(AMP\d{3})-([a-z0-9]+(?:-[a-z0-9]+)*)\.md")
_HEADING = re.compile(r"# (AMP\d{3}) · ([a-z0-9-]+)")
_FENCE = re.compile(r"```(\w+)?(?: (\w+))?\s*")
_KEYS: dict[str, type | tuple[type, ...]] = {
    "severity": str,
    "fix": str,
    "since": str,
    "apis": list,
    "torch": str,
    "default": bool,
    "removed": str,
}
_FIXES = ("safe", "unsafe", "none")


class PageError(AmpDoctorError):
    """A page of `rules/` that cannot be read; the message names file and line."""

    def __init__(self, file: Path, line: int, expected: str) -> None:
        super().__init__(f"{file}:{line}: {expected}")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: `kind` is bad, fixed, good, missed or empty; `line` is that of its first line of code."""

    kind: str
    language: str
    code: str
    line: int


@dataclass(frozen=True, slots=True)
class Page:
    """What `rules/AMPnnn-name.md` says. `torch` bounds the versions it is about; `removed` marks a tombstone."""

    code: str
    name: str
    summary: str
    severity: Severity
    fix: str
    since: str
    apis: tuple[str, ...]
    torch: str | None
    default: bool
    removed: str | None
    text: str
    blocks: tuple[Block, ...]
    file: Path

    @property
    def url(self) -> str:
        """Where the page can be read online."""
        return URL + self.file.name


@cache
def folder() -> Path:
    """The pages: beside this module in an installed package, beside the package in a checkout."""
    here = Path(__file__).resolve().parent
    shipped = here / "rules"
    return shipped if shipped.is_dir() else here.parent / "rules"


@cache
def codes() -> dict[str, str]:
    """Code -> name of every page, in the order of the codes, tombstones included."""
    names = sorted(os.listdir(folder())) if folder().is_dir() else []
    return {found[1]: found[2] for found in map(_FILE.fullmatch, names) if found}


def code_of(code_or_name: str) -> str:
    """The code that a code or a name stands for; SelectorError with a suggestion for anything else."""
    known = codes()
    if code_or_name.upper() in known:
        return code_or_name.upper()
    for code, name in known.items():
        if name == code_or_name:
            return code
    from difflib import get_close_matches

    close = get_close_matches(code_or_name, [*known, *known.values()], n=1)
    hint = f"; did you mean {close[0]}?" if close else "; `amp-doctor rules` lists them"
    raise SelectorError(f"no rule is called {code_or_name!r}{hint}")


def page(code_or_name: str) -> Page:
    """The page of a rule, parsed once."""
    code = code_of(code_or_name)
    return _read(code, codes()[code])


def summary(code: str) -> str:
    """The summary of a rule, read without its metadata."""
    text = (folder() / f"{code}-{codes()[code]}.md").read_text("utf-8") if code in codes() else ""
    before = text.partition("\n```")[0].splitlines()[1:]
    return " ".join(line.strip() for line in before if line.strip())


@cache
def severity(code: str) -> Severity:
    """The severity of a rule; the first line that names one is that of the metadata, which are not parsed."""
    text = (folder() / f"{code}-{codes()[code]}.md").read_text("utf-8")
    return Severity(text.partition("\nseverity")[2].split('"', 2)[1])


def url(code: str) -> str:
    """Where the page of `code` can be read online; derived from the file name, nothing is parsed."""
    return f"{URL}{code}-{codes()[code]}.md" if code in codes() else URL


@cache
def _read(code: str, name: str) -> Page:
    file = folder() / f"{code}-{name}.md"
    return parse(file.read_text("utf-8"), file)


def parse(text: str, file: Path) -> Page:
    """The page that `text` is; PageError names the line that breaks the form described in rules/README.md."""
    lines = text.splitlines()
    heading = _HEADING.fullmatch(lines[0]) if lines else None
    if heading is None:
        raise PageError(file, 1, "expected the heading `# AMPnnn · name`")
    if file.name != f"{heading[1]}-{heading[2]}.md":
        raise PageError(file, 1, f"the heading says {heading[1]}-{heading[2]}, the file name says {file.stem}")
    blocks = tuple(_blocks(lines, file))
    if not blocks or blocks[0].language != "toml":
        raise PageError(file, 3, "expected a ```toml block of metadata before any other block")
    summary = " ".join(line.strip() for line in lines[1 : blocks[0].line - 2] if line.strip())
    if not summary:
        raise PageError(file, 2, "expected a summary between the heading and the metadata")
    metadata = _metadata(blocks[0], file)
    return Page(
        code=heading[1],
        name=heading[2],
        summary=summary,
        severity=Severity(metadata["severity"]),
        fix=metadata["fix"],
        since=metadata["since"],
        apis=tuple(metadata.get("apis", ())),
        torch=metadata.get("torch"),
        default=metadata.get("default", not heading[1].startswith("AMP9")),
        removed=metadata.get("removed"),
        text=text,
        blocks=blocks[1:],
        file=file,
    )


def _blocks(lines: list[str], file: Path) -> list[Block]:
    blocks: list[Block] = []
    start: int | None = None
    language = kind = ""
    for number, line in enumerate(lines, 1):
        if start is None and line.startswith("```"):
            fence = _FENCE.fullmatch(line)
            if fence is None:
                raise PageError(file, number, "expected a fence of the form ```python bad")
            language, kind, start = fence[1] or "", fence[2] or "", number + 1
        elif start is not None and line.rstrip() == "```":
            code = "".join(f"{text}\n" for text in lines[start - 1 : number - 1])
            blocks.append(Block(kind, language, code, start))
            start = None
    if start is not None:
        raise PageError(file, start - 1, "this block is never closed")
    return blocks


def _metadata(block: Block, file: Path) -> dict[str, Any]:
    import tomllib

    try:
        metadata = tomllib.loads(block.code)
    except tomllib.TOMLDecodeError as error:
        raise PageError(file, block.line, f"the metadata are not TOML: {error}") from error
    for key, value in metadata.items():
        if key not in _KEYS:
            raise PageError(file, block.line, f"unknown key {key!r}; the keys are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise PageError(file, block.line, f"{key!r} has the wrong type: {value!r}")
    for key in ("severity", "fix", "since"):
        if key not in metadata:
            raise PageError(file, block.line, f"{key!r} is missing")
    for key, allowed in (("severity", tuple(Severity)), ("fix", _FIXES)):
        if metadata[key] not in allowed:
            raise PageError(file, block.line, f"{key} = {metadata[key]!r} is none of {', '.join(allowed)}")
    return metadata
