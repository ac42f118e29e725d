"""Node numbers -> spans, source text and statements. Positions are computed only when something is reported."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider

from amp_doctor.finding import Span

if TYPE_CHECKING:
    from libcst.metadata import CodeSpan

_NEWLINE = re.compile(rb"\r\n|\r|\n")


@dataclass(slots=True, eq=False)
class Places:
    """The places of one file's nodes. Offsets are in bytes of the UTF-8 encoded code."""

    tree: cst.Module
    code: str
    base: int
    nodes: list[cst.CSTNode]
    statements: dict[int, int]
    numbers: list[int] | None = None  # line of the parsed text -> line of the file, when functions were left out
    spans: dict[cst.CSTNode, tuple[int, int]] | None = None
    lines: list[int] | None = None
    raw: bytes = b""

    def resolve(self) -> dict[cst.CSTNode, tuple[int, int]]:
        """Compute the byte span of every node, once."""
        if self.spans is None:
            # As MetadataWrapper does it, but for a second walk over the tree that has nothing to do.
            provider = ByteSpanPositionProvider()
            provider._gen_impl(self.tree)
            found = cast("dict[cst.CSTNode, CodeSpan]", provider._computed)
            self.raw = self.code.encode("utf-8")
            self.lines = _line_starts(self.raw)
            self.spans = {node: (span.start, span.start + span.length) for node, span in found.items()}
            if self.numbers is not None:
                starts = _line_starts(self.tree.bytes)
                for node, (start, end) in self.spans.items():
                    self.spans[node] = (self._original(start, starts), self._original(end, starts))
        return self.spans

    def _original(self, offset: int, starts: list[int]) -> int:
        """An offset in the parsed text -> the offset in the file (kept lines are the same letter by letter)."""
        assert self.numbers is not None
        assert self.lines is not None
        line = bisect_right(starts, offset) - 1
        if line >= len(self.numbers):
            return len(self.raw)
        return min(self.lines[self.numbers[line] - 1] + offset - starts[line], len(self.raw))

    def bytes_of(self, at: int) -> tuple[int, int]:
        """Start and end offset of a node."""
        node = self.nodes[at - self.base]
        return self.resolve()[node]

    def span(self, at: int) -> Span:
        """The place of a node, in characters from 1."""
        start, end = self.bytes_of(at)
        line, column = self._place(start)
        end_line, end_column = self._place(end)
        return Span(line, column, end_line, end_column)

    def _place(self, offset: int) -> tuple[int, int]:
        assert self.lines is not None
        line = bisect_right(self.lines, offset)
        start = self.lines[line - 1]
        return line, len(self.raw[start:offset].decode("utf-8", "replace")) + 1

    def text(self, at: int) -> str:
        """The source text of a node (no positions are computed for it)."""
        node = self.nodes[at - self.base]
        if isinstance(node, cst.Arg):
            node = node.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        parts = node.body if isinstance(node, cst.SimpleStatementLine) else (node,)
        return "; ".join(self.tree.code_for_node(part).strip().rstrip(";") for part in parts)

    def statement(self, at: int) -> int:
        """The number of the statement that a node belongs to."""
        node = self.nodes[at - self.base]
        if isinstance(node, cst.BaseStatement):
            return at
        return self.statements.get(at, at)

    def loops(self, at: int, but: int) -> bool:
        """True when a loop holds one node and not the other."""
        (inside, _), (outside, _) = self.bytes_of(at), self.bytes_of(but)
        spans = [
            self.bytes_of(self.base + n) for n, node in enumerate(self.nodes) if isinstance(node, cst.For | cst.While)
        ]
        return any(start <= inside < end and not start <= outside < end for start, end in spans)

    def line_span(self, at: int) -> tuple[int, int, str]:
        """Start of the statement's first line, end of its last line (newline included), and its indentation."""
        start, end = self.bytes_of(self.statement(at))
        assert self.lines is not None
        first = self.lines[bisect_right(self.lines, start) - 1]
        after = bisect_right(self.lines, end)
        last = self.lines[after] if after < len(self.lines) else len(self.raw)
        return first, last, self.raw[first:start].decode("utf-8")

    def simple(self, at: int) -> bool:
        """True when the statement of a node is no compound one (`with`, `if`, `for` ...)."""
        return isinstance(self.nodes[self.statement(at) - self.base], cst.SimpleStatementLine)

    def alone(self, at: int) -> bool:
        """True when the statement of a node shares its lines with no other statement."""
        node = self.nodes[self.statement(at) - self.base]
        return not isinstance(node, cst.SimpleStatementLine) or len(node.body) == 1

    def newline(self) -> str:
        """The line ending the file is written with."""
        return "\r\n" if "\r\n" in self.code else "\r" if "\r" in self.code else "\n"

    def comment_after(self, at: int) -> bool:
        """A comment at the end of the statement's line (it would be lost with the line)."""
        node = self.nodes[self.statement(at) - self.base]
        return isinstance(node, cst.SimpleStatementLine) and node.trailing_whitespace.comment is not None


def _line_starts(raw: bytes) -> list[int]:
    if b"\r" in raw.replace(b"\r\n", b""):
        return [0, *(found.end() for found in _NEWLINE.finditer(raw))]
    starts = [0]
    position = raw.find(b"\n")
    while position >= 0:
        starts.append(position + 1)
        position = raw.find(b"\n", position + 1)
    return starts
