"""A file's bytes -> its Python text, and a changed text back to bytes: encodings, BOM, line endings, notebooks."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.errors import ReadError
from amp_doctor.lint.files import display, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.finding import Edit, Span
    from amp_doctor.lint.notebook import Cell

BOM = b"\xef\xbb\xbf"

_CODING = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_NO_CODE = re.compile(rb"[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n|\Z)")
_LINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Source:
    """`code` is the Python text without BOM and with its own line endings; a notebook's code cells follow each other.

    `path` is how reports name the file, `cells` is None unless it is a notebook.
    """

    path: str
    file: Path | None
    raw: bytes
    code: str
    cells: tuple[Cell, ...] | None = None

    @classmethod
    def from_text(cls, path: str, code: str) -> Source:
        """A text that lies in no file."""
        return cls(path, None, code.encode(errors="replace"), code)

    def place(self, line: int) -> tuple[int, int] | None:
        """Notebook cell (from 1) and line inside it; None in a plain file."""
        cell = self.cell_at(line)
        return None if cell is None else (cell.number, line - cell.first_line + 1)

    def cell_at(self, line: int) -> Cell | None:
        """The cell that holds `line`; None in a plain file."""
        if not self.cells:
            return None
        return self.cells[max(bisect_right(self.cells, line, key=lambda cell: cell.first_line) - 1, 0)]


def read_source(path: str | os.PathLike[str]) -> Source:
    """The file at `path`; ReadError says in one line what is wrong with it."""
    file = os.fspath(path)
    return parse_source(read_bytes(file), display(file), Path(file))


def parse_source(raw: bytes, path: str, file: Path | None = None) -> Source:
    """The text that `raw` holds; `path` names it in reports and tells notebooks by their suffix."""
    if path.endswith(".ipynb"):
        from amp_doctor.lint.notebook import read_notebook

        code, cells = read_notebook(raw, path)
        return Source(path, file, raw, code, cells)
    return Source(path, file, raw, decoded(raw, path))


def decoded(raw: bytes, path: str) -> str:
    """`raw` in the encoding that PEP 263 gives it."""
    encoding = declared_encoding(raw) or "utf-8"
    if raw.startswith(BOM):
        if not _is_utf8(encoding):
            raise ReadError(path, f"starts with a UTF-8 byte order mark but declares the encoding {encoding!r}")
        raw, encoding = raw[len(BOM) :], "utf-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ReadError(path, "is UTF-16; Python reads UTF-8, so save it as that") from error
        line = raw.count(b"\n", 0, error.start) + 1
        wanted = "UTF-8" if _is_utf8(encoding) else encoding
        raise ReadError(path, f"is not {wanted}: line {line} has the byte 0x{raw[error.start]:02x}") from error
    except (LookupError, ValueError) as error:
        raise ReadError(path, f"declares the encoding {encoding!r}, which Python does not know") from error


def declared_encoding(raw: bytes) -> str | None:
    """The encoding that a comment in the first two lines declares."""
    start = len(BOM) if raw.startswith(BOM) else 0
    for _ in range(2):
        if found := _CODING.match(raw, start):
            return found[1].decode("ascii", "replace")
        line = _NO_CODE.match(raw, start)
        if line is None:
            return None
        start = line.end()
    return None


def edited(source: Source, edits: Iterable[Edit]) -> Source:
    """`source` after `edits`, which do not overlap; its BOM, encoding and a notebook's formatting are kept.

    Raises ValueError when the file cannot hold the result: an encoding without the characters, an edit
    across notebook cells.
    """
    if source.cells is not None:
        from amp_doctor.lint.notebook import edited_notebook

        return parse_source(edited_notebook(source, edits), source.path, source.file)
    code = source.code.encode()
    for edit in sorted(edits, reverse=True):
        code = code[: edit.start] + edit.text.encode() + code[edit.end :]
    text = code.decode()
    bom = source.raw.startswith(BOM)
    raw = BOM + code if bom else text.encode(declared_encoding(source.raw) or "utf-8")
    return Source(source.path, source.file, raw, text)


def line_starts(code: str) -> list[int]:
    """Offset in characters of the start of every line."""
    return [0, *(found.end() for found in _LINE.finditer(code))]


def byte_offset(code: str, offset: int) -> int:
    """The offset in UTF-8 bytes of an offset in characters."""
    return offset if code.isascii() else len(code[:offset].encode(errors="replace"))


def text_of(source: Source, span: Span) -> str:
    """The characters that `span` covers."""
    starts = line_starts(source.code)
    return source.code[starts[span.line - 1] + span.column - 1 : starts[span.end_line - 1] + span.end_column - 1]


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
