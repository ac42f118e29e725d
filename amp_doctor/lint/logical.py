"""Python text -> its comments and logical lines, by one regular expression; cheap, and needs no valid syntax."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

# Prefixes do not matter: even in a raw string a backslash keeps the quote after it from closing.
# A quote inside the braces of an f-string (PEP 701) splits it in two strings, which comes to the same.
_TOKEN = r"""
    (?P<newline>\r\n|\r|\n)
  | (?P<comment>\#[^\r\n]*)
  | (?P<opening>[(\[{])
  | (?P<closing>[)\]}])
  | (?P<long>"{3}[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:"{3}|\Z) | '{3}[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:'{3}|\Z)
      | \\(?:\r\n|\r|\n))
  | (?P<short>"[^"\\\r\n]*(?:\\(?:\r\n|.)[^"\\\r\n]*)*"? | '[^'\\\r\n]*(?:\\(?:\r\n|.)[^'\\\r\n]*)*'?)
    """
_LINE_END = re.compile(r"\r\n|\r|\n")
_NO_BRACKETS = bytes(set(range(256)) - set(b"()[]{}"))


@cache
def tokens() -> re.Pattern[str]:
    """The expression, compiled when the first file needs it; most files do not."""
    return re.compile(_TOKEN, re.VERBOSE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment at `start:end` (characters); `own` when nothing else stands on its line."""

    line: int
    column: int
    start: int
    end: int
    own: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The comments, first and last line of every logical line that holds code, and how deep brackets are nested."""

    comments: tuple[Comment, ...]
    statements: tuple[tuple[int, int], ...]
    depth: int


def shallow(code: str, limit: int) -> bool:
    """True when brackets are surely nested less than `limit` deep; takes a hundredth of the time that a layout does.

    Pairs with nothing between them are taken out until there are none: so many turns, so deep. What brackets in
    strings leave over might have been code, and counts as if it were nested.
    """
    left = code.encode(errors="replace").translate(None, _NO_BRACKETS)
    for turn in range(limit):
        fewer = left.replace(b"()", b"").replace(b"[]", b"").replace(b"{}", b"")
        if len(fewer) == len(left):
            return turn + len(left) < limit
        left = fewer
    return False


def layout(code: str) -> Layout:
    """Comments and logical lines of `code`."""
    comments: list[Comment] = []
    statements: list[tuple[int, int]] = []
    line, line_start, first, depth, deepest, position = 1, 0, 0, 0, 0, 0
    for token in tokens().finditer(code):
        start, kind = token.start(), token.lastgroup
        if not first and start > position and code[position:start].strip():
            first = line
        position = token.end()
        if kind == "newline":
            if first and depth == 0:
                statements.append((first, line))
                first = 0
            line, line_start = line + 1, position
        elif kind == "comment":
            own = not code[line_start:start].strip()
            comments.append(Comment(line, start - line_start + 1, start, position, own))
        else:
            first = first or line
            if kind == "opening":
                depth += 1
                deepest = max(deepest, depth)
            elif kind == "closing":
                depth = max(depth - 1, 0)
            else:
                for end in _LINE_END.finditer(token[0]):
                    line, line_start = line + 1, start + end.end()
    if not first and code[position:].strip():
        first = line
    if first:
        statements.append((first, line))
    return Layout(tuple(comments), tuple(statements), deepest)
