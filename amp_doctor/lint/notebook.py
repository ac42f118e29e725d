"""A notebook's JSON -> the Python of its code cells, and a changed text back into the very same JSON.

Only the strings of changed lines are written anew; outputs, metadata and formatting stay byte for byte.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from amp_doctor.errors import ReadError
from amp_doctor.lint.logical import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amp_doctor.finding import Edit
    from amp_doctor.lint.source import Source

_SPACE = re.compile(r"[ \t\r\n]*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder(strict=False)

# `%%time` and its like run the rest of the cell as Python; other cell magics hand it to something else.
_PYTHON_CELL = re.compile(r"\s*%%(?:time|timeit|capture|prun|memit|mprun|lprun|snakeviz|python3?)\b")
_MAGIC = re.compile(r"[ \t]*(?:[A-Za-z_][\w., \t]*=[ \t]*(?=[%!]))?(?P<magic>[%!?]|[\w.]+\?\??[ \t]*(?:\r?\n)?\Z)")
_TIMED = re.compile(r"[ \t]*(?P<magic>%time[ \t]+)(?!for\b|while\b|if\b|with\b|try\b|def\b|class\b|-)\S")


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell: `number` counts all cells from 1, `first_line` is its first line in `Source.code`.

    `start:end` is its JSON value in the notebook's text, `code` what stands there, `masked` the same with
    magics blanked character by character; `masked` and a newline where it has none make up `Source.code`.
    """

    number: int
    first_line: int
    start: int
    end: int
    code: str
    masked: str


def read_notebook(raw: bytes, path: str) -> tuple[str, tuple[Cell, ...]]:
    """The joined code of a notebook and its cells; both empty when it is not a Python notebook."""
    try:
        text = raw.decode("utf-8-sig")
        whole = json.loads(text, strict=False)
    except UnicodeDecodeError as error:
        raise ReadError(path, f"is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}") from error
    except json.JSONDecodeError as error:
        reason = f"is not a notebook: invalid JSON at line {error.lineno}, {error.msg}"
        raise ReadError(path, reason) from error
    except (ValueError, RecursionError) as error:
        raise ReadError(path, f"is not a notebook: {error}") from error
    if isinstance(whole, dict) and "worksheets" in whole:
        raise ReadError(path, "is a notebook of format 3; `jupyter nbconvert --to notebook` brings it up to date")
    if not isinstance(whole, dict) or not isinstance(whole.get("cells"), list):
        raise ReadError(path, "is not a notebook: its JSON has no list of cells")
    if _language(whole) not in ("python", "ipython"):
        return "", ()
    cells: list[Cell] = []
    line = 1
    for number, start, end in _sources(text):
        value = _DECODER.raw_decode(text, start)[0]
        code = "".join(str(part) for part in value) if isinstance(value, list) else str(value)
        code = _SURROGATE.sub("?", code)
        masked = mask(code)
        cells.append(Cell(number, line, start, end, code, masked))
        line += len(_LINE.findall(_ended(masked)))
    return "".join(_ended(cell.masked) for cell in cells), tuple(cells)


def edited_notebook(source: Source, edits: Iterable[Edit]) -> bytes:
    """The notebook's bytes after `edits` of `source.code`; ValueError for an edit that is not inside one cell."""
    cells = [cell for cell in source.cells or () if cell.masked]
    sizes = [len(_ended(cell.masked).encode()) for cell in cells]
    starts = list(accumulate(sizes, initial=0))
    changed: dict[int, str] = {}
    for edit in sorted(edits, reverse=True):
        index = bisect_right(starts, edit.start) - 1
        if index and edit.start == edit.end == starts[index] and (edit.text[:1].isspace() or index == len(cells)):
            # An indented line put between two cells goes on with the block that the first one ends in.
            index -= 1
        if index >= len(cells) or edit.end > starts[index + 1]:
            raise ValueError("an edit across notebook cells")
        cell = cells[index]
        before = _ended(cell.masked).encode()
        text = changed.get(index, _ended(cell.code))
        low, high = (len(before[: at - starts[index]].decode()) for at in (edit.start, edit.end))
        changed[index] = text[:low] + edit.text + text[high:]
    text = source.raw.decode("utf-8-sig")
    for index in sorted(changed, reverse=True):
        cell, code = cells[index], changed[index]
        if not cell.code.endswith(("\n", "\r")):
            code = code.removesuffix("\n")
        text = text[: cell.start] + _json_source(text[cell.start : cell.end], code) + text[cell.end :]
    return text.encode("utf-8-sig" if source.raw.startswith(b"\xef\xbb\xbf") else "utf-8")


def mask(code: str) -> str:
    """`code` with magics and shell commands blanked: as many lines and columns, and valid Python around them."""
    if not any(sign in code for sign in "%!?"):
        return code
    lines = _LINE.findall(code)
    if code.lstrip().startswith("%%"):
        first = next(index for index, line in enumerate(lines) if line.strip())
        if not _PYTHON_CELL.match(lines[first]):
            return "".join(_blank(line) for line in lines)
        lines[first] = _blank(lines[first])
    depth, quote, joined, shell = 0, "", False, False
    for index, line in enumerate(lines):
        if shell:
            shell = line.rstrip("\r\n").endswith("\\")
            lines[index] = _blank(line)
            continue
        # Inside a string, a bracket or after a backslash a % is an operator and a ? is text.
        if not (depth or quote or joined):
            if timed := _TIMED.match(line):
                at, end = timed.span("magic")
                lines[index] = f"{line[:at]}0{' ' * (end - at - 2)};{line[end:]}"
            elif found := _MAGIC.match(line):
                shell = line.rstrip("\r\n").endswith("\\") and line[found.start("magic")] in "%!"
                lines[index] = _blank(line, found.start("magic"))
                continue
        depth, quote, joined = _unfinished(lines[index], depth, quote)
    return "".join(lines)


def _unfinished(line: str, depth: int, quote: str) -> tuple[int, str, bool]:
    """What is open after `line`: how many brackets, which triple quote, and whether a backslash joins the next."""
    start = 0
    if quote:
        closed = re.compile(rf"(?:\\.|(?!{quote}).)*{quote}", re.DOTALL).match(line)
        if closed is None:
            return depth, quote, False
        start = closed.end()
    joined = False
    for token in tokens().finditer(line, start):
        match token.lastgroup:
            case "opening":
                depth += 1
            case "closing":
                depth = max(depth - 1, 0)
            case "long" if token[0][0] == "\\":
                joined = True
            case "long":
                whole = len(token[0]) >= 6 and token[0].endswith(token[0][:3])
                if not whole:
                    return depth, token[0][:3], False
    return depth, "", joined


def _blank(line: str, start: int = 0) -> str:
    """A statement that does nothing and a comment, of the same length, from `start` on."""
    body = line.rstrip("\r\n")
    width = len(body) - start
    if not body[start:].strip():
        return line
    if start == 0:
        # A line of a foreign cell, or a magic at the margin: nothing has to stand there.
        return "#" + " " * (width - 1) + line[len(body) :]
    return body[:start] + "0#"[:width].ljust(width) + line[len(body) :]


def _ended(code: str) -> str:
    return code if code.endswith(("\n", "\r")) or not code else code + "\n"


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    if not isinstance(metadata, dict):
        return "python"
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        found = metadata.get(key)
        if isinstance(found, dict) and isinstance(found.get(name), str):
            return str(found[name]).lower()
    return "python"


def _sources(text: str) -> Iterator[tuple[int, int, int]]:
    """Number of every code cell, and where the value of its `source` stands."""
    for key, start, _ in _members(text, _SPACE.match(text).end()):  # type: ignore[union-attr]
        if key == "cells":
            for number, (at, _) in enumerate(_items(text, start), 1):
                if text[at] != "{":
                    continue
                members = {name: (begin, end) for name, begin, end in _members(text, at)}
                kind = members.get("cell_type")
                if kind is not None and text[kind[0] : kind[1]] == '"code"' and "source" in members:
                    yield (number, *members["source"])


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Key of every member of the JSON object at `start`, and where its value stands."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        end = _DECODER.raw_decode(text, begin)[1]
        yield key, begin, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _items(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Where every item of the JSON array at `start` stands."""
    at = _skip(text, start + 1)
    while text[at] != "]":
        end = _DECODER.raw_decode(text, at)[1]
        yield at, end
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _json_source(raw: str, code: str) -> str:
    """`code` as JSON in the form of `raw`, the value it replaces; strings of lines that stay keep their spelling."""
    if raw.startswith('"'):
        return _json_string(code, raw)
    items = list(_items(raw, 0))
    known = {_DECODER.raw_decode(raw, start)[0]: raw[start:end] for start, end in items}
    lines = _LINE.findall(code)
    spelled = [known.get(line) or _json_string(line, raw) for line in lines]
    if not items:
        return f"[{', '.join(spelled)}]"
    head, tail = raw[: items[0][0]], raw[items[-1][1] :]
    between = raw[items[0][1] : items[1][0]] if len(items) > 1 else "," + (head[1:] or " ")
    return head + between.join(spelled) + tail if spelled else "[]"


def _json_string(text: str, neighbour: str) -> str:
    """Escaped as its neighbours are: beyond ASCII only where they do so too."""
    return json.dumps(text, ensure_ascii=neighbour.isascii() and "\\u" in neighbour)
