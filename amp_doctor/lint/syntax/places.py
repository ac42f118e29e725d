"""Node numbers -> spans, source text and statements. Positions are computed only when something is reported."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider
from libcst.metadata.span_provider import SpanProvidingCodegenState

from amp_doctor.finding import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEWLINE = re.compile(rb"\r\n|\r|\n")


class _Writer(SpanProvidingCodegenState):
    """Writes a tree and notes in `spans` where each node begins and ends, in bytes.

    As ByteSpanPositionProvider does it, at half the cost: no object for each node, and no second walk over the
    tree as under MetadataWrapper.
    """

    def __init__(self, tree: cst.Module) -> None:
        super().__init__(
            default_indent=tree.default_indent,
            default_newline=tree.default_newline,
            provider=ByteSpanPositionProvider(),
        )
        self.spans: dict[cst.CSTNode, tuple[int, int]] = {}

    def _update_position(self, value: str) -> None:
        self.position += len(value) if value.isascii() else len(value.encode())

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self._stack.pop()
        if node not in self.spans:
            self.spans[node] = (start, self.position)

    @contextmanager
    def record_syntactic_position(
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> Iterator[None]:
        """The node itself, without the space around it."""
        start = self.position
        try:
            yield
        finally:
            first = start if start_node is None else self.spans[start_node][0]
            last = self.position if end_node is None else self.spans[end_node][1]
            self.spans[node] = (first, last)


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
    starts: list[int] = field(default_factory=list)  # of the lines of the parsed text
    raw: bytes = b""

    def resolve(self) -> dict[cst.CSTNode, tuple[int, int]]:
        """Compute the byte span of every node, once; of a file that was shortened, in the shortened text."""
        if self.spans is None:
            writer = _Writer(self.tree)
            self.tree._codegen(writer)
            self.spans = writer.spans
            self.raw = self.code.encode("utf-8")
            self.lines = _line_starts(self.raw)
            if self.numbers is not None:
                self.starts = _line_starts(self.tree.bytes)
        return self.spans

    def _original(self, offset: int) -> int:
        """An offset in the parsed text -> the offset in the file (kept lines are the same letter by letter)."""
        assert self.numbers is not None
        assert self.lines is not None
        starts = self.starts
        line = bisect_right(starts, offset) - 1
        if line >= len(self.numbers):
            return len(self.raw)
        return min(self.lines[self.numbers[line] - 1] + offset - starts[line], len(self.raw))

    def bytes_of(self, at: int) -> tuple[int, int]:
        """Start and end offset of a node."""
        start, end = self.resolve()[self.nodes[at - self.base]]
        return (start, end) if self.numbers is None else (self._original(start), self._original(end))

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


def _line_starts(raw: bytes) -> list[int]:
    if b"\r" in raw.replace(b"\r\n", b""):
        return [0, *(found.end() for found in _NEWLINE.finditer(raw))]
    starts = [0]
    position = raw.find(b"\n")
    while position >= 0:
        starts.append(position + 1)
        position = raw.find(b"\n", position + 1)
    return starts
