"""Before libcst sees a large file: leave out the functions and classes that hold nothing of mixed precision.

libcst takes a second for 400 KB; a modeling file of that size has its one autocast block in twenty lines. Blocks are
found by indentation, on lines; what is kept is kept letter by letter, and a map of line numbers leads back. When
the shortened text does not parse (a string that looks like code), the whole file is parsed instead. A
syntax error inside a function that is left out is not seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

SMALL = 12_000
"""Characters up to which a file is read whole."""

TRAINING = 120_000
"""Characters up to which a file that trains under autocast is read whole: its models matter too."""

_BLOCK = re.compile(r"([ \t\f]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
_TELLING = re.compile(
    r"autocast|GradScaler|(?:grad|amp|loss|fp16)_?[Ss]caler|[Ss]caler\.(?:scale|step|update|state_dict|load_state)|unscale_|backward\b|"
    r"\.half\(|clip_grad|HalfTensor|custom_fwd|custom_bwd|set_default_dtype|"
    r"scale_loss|(?:cuda|cpu)\.amp|apex|(?<![=!<>])=\s*torch\.(?:float16|half)\b|\.to\(\s*torch\.(?:float16|half)\b|float16[\"']\)"
)
"""Words that make a function worth reading. A comparison with float16 says nothing; a cast to it does."""
_SURE = ("autocast", "GradScaler", "unscale_", ".half(", "clip_grad", "HalfTensor", "custom_fwd", "custom_bwd", "apex")
_PERHAPS = (
    "caler",
    "backward",
    "set_default_dtype",
    "scale_loss",
    "a.amp",
    "u.amp",
    "h.half",
    "float16",
)  # one of each other alternative
_REGION = re.compile(r"autocast\(|GradScaler")
_WORD = re.compile(r"\w+")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_OTHER_BREAKS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_QUOTED = re.compile(r"""(\"{3}|'{3})|#|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")


def _telling(code: str) -> bool:
    """True when the expression above finds something; plain searches tell most texts apart far sooner."""
    if any(word in code for word in _SURE):
        return True
    return any(word in code for word in _PERHAPS) and _TELLING.search(code) is not None


@dataclass(slots=True)
class Pruned:
    """The text to parse; line n of it (from 1) is line `lines[n - 1]` of the file."""

    code: str
    lines: list[int] | None = None


@dataclass(slots=True)
class _Block:
    kind: str
    name: str
    indent: int
    start: int  # first line, decorators included
    head: int
    end: int  # first line after it
    parent: _Block | None
    text: str = ""
    code: str = ""  # without the lines of strings and comments
    keep: bool = False


def prune(code: str) -> Pruned:
    """Leave out what cannot matter; small files are returned as they are."""
    trains = ".backward(" in code
    if len(code) < SMALL or (len(code) < TRAINING and trains and _REGION.search(code)):
        return Pruned(code)
    # `str.splitlines` knows more ends of lines than Python's own grammar.
    lines = _LINE.findall(code) if _OTHER_BREAKS.search(code) else code.splitlines(keepends=True)
    plain: list[str] = []
    blocks = _blocks(lines, plain)
    if not _telling("".join(plain)):
        return Pruned("", [])  # mixed precision is only talked about, in docstrings and comments
    if not blocks and len(code) < HUGE:
        return Pruned(code)
    _choose(blocks, lines, plain, trains)
    return _shortened(blocks, lines)


def _blocks(lines: list[str], plain: list[str]) -> list[_Block]:
    """Functions and classes with their extent, outer before inner; functions inside functions belong to them.

    `plain` is filled with the lines, those of multi-line strings and comments left empty.
    """
    found: list[_Block] = []
    open_blocks: list[_Block] = []
    in_string = ""
    decorators = -1
    depth = 0  # indentation of the decorator that is being read
    for number, line in enumerate(lines):
        if in_string:
            plain.append("")
            end = line.find(in_string)
            if end >= 0:
                in_string = _opens(line, end + 3)
            continue
        stripped = line.lstrip()
        plain.append("" if stripped.startswith(("#", '"""', 'r"""')) else line)
        if not stripped or stripped[0] in "#)]}":
            continue
        # A form feed sets the indentation back to zero.
        indent = len(line) - len(stripped) - (line.rfind("\f", 0, len(line) - len(stripped)) + 1)
        while open_blocks and indent <= open_blocks[-1].indent:
            open_blocks.pop().end = number if decorators < 0 else decorators
        if stripped[0] == "@":
            if decorators < 0:
                decorators, depth = number, indent
        elif decorators >= 0 and indent > depth:
            pass  # the decorator's own arguments
        else:
            match = _BLOCK.match(line) if stripped[0] in "adc" else None
            if match is not None and not (open_blocks and open_blocks[-1].kind == "def"):
                start = decorators if decorators >= 0 else number
                block = _Block(
                    match[2], match[3], indent, start, number, len(lines), open_blocks[-1] if open_blocks else None
                )
                found.append(block)
                open_blocks.append(block)
            decorators = -1
        in_string = _opens(line)
    return found


def _opens(line: str, position: int = 0) -> str:
    """The triple quote that a line opens and does not close."""
    if '"""' not in line and "'''" not in line:
        return ""
    while (found := _QUOTED.search(line, position)) is not None:
        if found[0] == "#":
            break
        position = found.end()
        if found[1]:
            position = line.find(found[1], position) + 3
            if position < 3:
                return found[1]
    return ""


def _choose(blocks: list[_Block], lines: list[str], plain: list[str], trains: bool) -> None:
    """Keep functions that speak of mixed precision, what they call here, and the __init__ of their classes.

    In a file that trains, the classes that such functions name are kept too: their models and their losses.
    """
    named: dict[str, list[_Block]] = {}
    for block in blocks:
        block.text = "".join(lines[block.start : block.end])
        block.code = "".join(plain[block.start : block.end])
        named.setdefault(block.name, []).append(block)
    pending = [block for block in blocks if block.kind == "def" and _telling(block.code)]
    while pending:
        block = pending.pop()
        if block.keep:
            continue
        block.keep = True
        if block.kind == "def":
            for word in set(_WORD.findall(block.code)):
                pending += [
                    other
                    for other in named.get(word, ())
                    if not other.keep
                    and ((other.kind == "class" and trains) or other.parent is None or other.parent is block.parent)
                ]
        parent = block.parent
        while parent is not None and not parent.keep:
            parent.keep = True
            pending += [other for other in named.get("__init__", ()) if other.parent is parent]
            parent = parent.parent
        if block.kind == "class" and trains:
            pending += [
                other for other in blocks if other.parent is block and other.name in ("__init__", "forward", "__call__")
            ]


HUGE = 300_000
"""Characters from which on the rows of long tables are left out too."""

_CONSTANT = r"""(?:-?[\d.][\w.+-]*|'[^'\\\n]*'|"[^"\\\n]*"|None|True|False)"""
_ROW = re.compile(rf"[ \t]+(?:[\[({{]*[ \t]*{_CONSTANT}[\])}}]*[ \t]*[,:][ \t]*)+(?:\r?\n)?")
"""A line of constants that ends with a comma: without it the table is shorter, and still one."""


def _without_rows(kept: list[str], numbers: list[int]) -> Pruned:
    """Leave out tables: runs of more rows than anybody writes as arguments of a call."""
    lines: list[str] = []
    places: list[int] = []
    for row, run in groupby(zip(kept, numbers, strict=True), key=lambda pair: _is_row(pair[0])):
        part = list(run)
        if not row or len(part) < 20:
            lines += [line for line, _ in part]
            places += [number for _, number in part]
    return Pruned("".join(lines), places)


def _is_row(line: str) -> bool:
    balanced = all(line.count(a) == line.count(b) for a, b in ("[]", "()", "{}"))
    return balanced and _ROW.fullmatch(line) is not None


def _shortened(blocks: list[_Block], lines: list[str]) -> Pruned:
    kept: list[str] = []
    numbers: list[int] = []
    position = 0
    for block in blocks:
        if block.keep or block.start < position:
            continue
        for number in range(position, block.start):
            kept.append(lines[number])
            numbers.append(number + 1)
        kept.append(f"{lines[block.head][: -len(lines[block.head].lstrip())]}pass\n")
        numbers.append(block.head + 1)
        position = block.end
    for number in range(position, len(lines)):
        kept.append(lines[number])
        numbers.append(number + 1)
    if sum(map(len, kept)) > HUGE:
        return _without_rows(kept, numbers)
    return Pruned("".join(kept), numbers)
