"""Comments that hide findings: `# noqa: AMP201`, `# amp-doctor: ignore[name] reason`, and ignore-file for a whole file.

A stage of its own after the checks: what is hidden stays in the report, marked; what hides nothing is AMP002.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amp_doctor import catalog
from amp_doctor.finding import Applicability, Edit, Finding, Fix, Severity, Span
from amp_doctor.lint.logical import layout
from amp_doctor.lint.source import byte_offset, line_starts
from amp_doctor.selection import PROBED, stands_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amp_doctor.lint.logical import Comment, Layout
    from amp_doctor.lint.source import Source

UNUSED = "AMP002"

# Compiled when there is something to read; most files have no such comments. Case does not matter.
# A noqa comment that lists only other tools' codes is none of our business.
_WORTH_READING = r"#\s*noqa(?!\s*:\s*[A-Z]+[0-9])|#\s*noqa\b[^\r\n]*(?:AMP|[a-z]-[a-z])|amp-doctor\s*:"
_PRAGMA = (
    r"\#\s*(?:(?P<noqa>noqa)\b\s*(?P<colon>:?)"
    r"|amp-doctor\s*:\s*(?P<verb>[\w-]*)\s*(?:\[(?P<listed>[^\]\#]*)\]?)?)(?P<rest>[^#]*)"
)
_NOQA_CODE = re.compile(r"[,\s]*(?P<code>[A-Za-z]+[0-9]+|[a-z0-9]+(?:-[a-z0-9]+)+)\b(?!-)")
_OURS = re.compile(r"AMP[0-9]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pragma:
    """One such comment. `first:last` are the lines it covers, 0 when it covers the whole file.

    `codes` are its words as written, foreign ones too; empty means every rule. `removal` deletes the comment;
    `head`, `separator`, `tail` and the bytes `start:end` spell it again with fewer codes.
    """

    span: Span
    first: int
    last: int
    noqa: bool
    codes: tuple[str, ...]
    removal: Edit
    start: int
    end: int
    head: str
    separator: str
    tail: str
    fault: str | None = None

    def covers(self, finding: Finding) -> bool:
        """True when the finding starts in the statement of this comment, or ends on its very line."""
        start = finding.span.line
        return not self.first or self.first <= start <= self.last or start < self.span.line == finding.span.end_line

    def without(self, unused: Iterable[str]) -> Edit:
        """The edit that takes out `unused` codes, or the whole comment when none would be left."""
        gone = set(unused)
        kept = [code for code in self.codes if code not in gone]
        if not kept:
            return self.removal
        return Edit(self.start, self.end, f"{self.head}{self.separator.join(kept)}{self.tail}")


def suppress(
    source: Source, findings: Iterable[Finding], enabled: Callable[[str], bool] | None = None
) -> tuple[Finding, ...]:
    """The findings of one source, marked where a comment hides them, and AMP002 for comments that hide nothing."""
    return settle(source.path, pragmas(source), findings, enabled or (lambda _: True))


def pragmas(source: Source) -> tuple[Pragma, ...]:
    """The comments of `source` that may hide findings."""
    code = source.code
    low = code.lower()
    if ("noqa" not in low and "amp-doctor" not in low) or not re.search(_WORTH_READING, code, re.IGNORECASE):
        return ()
    seen = layout(code)
    found = []
    for comment in seen.comments:
        for match in re.compile(_PRAGMA, re.IGNORECASE).finditer(code, comment.start, comment.end):
            pragma = _pragma(code, comment, match, seen)
            if pragma is not None:
                found.append(pragma)
    return tuple(found)


def settle(
    path: str, comments: tuple[Pragma, ...], findings: Iterable[Finding], enabled: Callable[[str], bool]
) -> tuple[Finding, ...]:
    """`findings`, all in `path`, marked; and AMP002 for what is unused, when that rule is enabled."""
    used: set[tuple[Pragma, str | None]] = set()
    marked = []
    for finding in findings:
        hidden = [(pragma, word) for pragma in comments if pragma.covers(finding) for word in _hiding(pragma, finding)]
        used.update(hidden)
        marked.append(replace(finding, suppressed=True) if hidden else finding)
    if enabled(UNUSED):
        for pragma in comments:
            unused = _unused(path, pragma, used, enabled)
            if unused is not None:
                marked.append(replace(unused, suppressed=_excused(unused, pragma, comments)))
    return tuple(marked)


def _excused(unused: Finding, pragma: Pragma, comments: tuple[Pragma, ...]) -> bool:
    """True when a comment hides the AMP002 about `pragma`; itself only if it names that rule."""
    return any(
        (other is not pragma or other.codes) and other.covers(unused) and _hiding(other, unused) for other in comments
    )


def _hiding(pragma: Pragma, finding: Finding) -> list[str | None]:
    """The words of `pragma` that mean the rule of `finding`; [None] when it means every rule."""
    if pragma.fault is not None:
        return []
    if not pragma.codes:
        return [None]
    return [word for word in pragma.codes if stands_for(_selector(word), finding.code, finding.name)]


def _selector(word: str) -> str:
    return word.upper() if _OURS.fullmatch(word) or word.upper() == "ALL" else word


def _unused(
    path: str, pragma: Pragma, used: set[tuple[Pragma, str | None]], enabled: Callable[[str], bool]
) -> Finding | None:
    """AMP002 for what is wrong with `pragma`, if anything is."""
    if pragma.fault is not None:
        return _finding(path, pragma, pragma.fault, None)
    if not pragma.codes:
        if pragma.noqa or (pragma, None) in used:
            return None
        return _finding(path, pragma, "this comment suppresses nothing", pragma.removal)
    codes = catalog.codes()
    unknown, idle = [], []
    for word in pragma.codes:
        selector = _selector(word)
        meant = [code for code, name in codes.items() if stands_for(selector, code, name)]
        if not meant:
            # After noqa a word we do not know is another tool's, unless it starts like ours.
            if not pragma.noqa or _OURS.match(word):
                unknown.append(word)
        elif all(code.startswith(PROBED) for code in meant):
            continue  # what the probe finds, lint cannot miss
        elif (pragma, word) not in used and UNUSED not in meant and all(map(enabled, meant)):
            idle.append(word)
    if not unknown and not idle:
        return None
    parts = [f"no rule is called {', '.join(unknown)}"] if unknown else []
    parts += [f"suppresses nothing: {', '.join(idle)}"] if idle else []
    return _finding(path, pragma, "; ".join(parts), pragma.without([*unknown, *idle]))


def _finding(path: str, pragma: Pragma, message: str, edit: Edit | None) -> Finding:
    words = "delete the comment" if edit == pragma.removal else "delete what is unused"
    fix = Fix(Applicability.SAFE, words, (edit,)) if edit is not None else None
    return Finding(UNUSED, "unused-suppression", Severity.WARNING, message, path, pragma.span, fix=fix)


def _pragma(code: str, comment: Comment, match: re.Match[str], seen: Layout) -> Pragma | None:
    fault = None
    verb = (match["verb"] or "").lower()
    start, end = match.start(), match.end("rest")
    if match["noqa"]:
        first_word = match.end("colon")
        words, last_word = _noqa_codes(code, first_word, end) if match["colon"] else ((), first_word)
    else:
        first_word, last_word = match.span("listed") if match["listed"] is not None else (0, 0)
        words = tuple(word for word in re.split(r"[,\s]+", match["listed"] or "") if word)
        if verb not in ("ignore", "ignore-file"):
            fault = f"expected ignore[...] or ignore-file[...], not {verb!r}"
        elif match["listed"] is not None and not words:
            fault = "names no rule between its brackets"
        elif match["listed"] is not None and code[last_word : last_word + 1] != "]":
            fault = "has no closing bracket"
    own = comment.own and not match["noqa"]
    first, last = (0, 0) if verb == "ignore-file" else _covered(code, comment, own, seen)
    shown = code[start:end].rstrip()
    column = comment.column + start - comment.start
    listed = code[first_word:last_word]
    return Pragma(
        span=Span(comment.line, column, comment.line, column + len(shown)),
        first=first,
        last=last,
        noqa=bool(match["noqa"]),
        codes=words,
        removal=_removal(code, comment, start, end),
        start=byte_offset(code, start),
        end=byte_offset(code, start + len(shown)),
        head=code[start:first_word] + listed[: len(listed) - len(listed.lstrip())],
        separator=", " if ", " in listed else "," if "," in listed else " ",
        tail=code[last_word : start + len(shown)],
        fault=fault,
    )


def _noqa_codes(code: str, start: int, end: int) -> tuple[tuple[str, ...], int]:
    """The codes and rule names after `noqa:`, up to the first word that is neither, and where they end."""
    words = []
    names = catalog.codes().values()
    while (found := _NOQA_CODE.match(code, start, end)) and ("-" not in found["code"] or found["code"] in names):
        words.append(found["code"])
        start = found.end()
    return tuple(words), start


def _covered(code: str, comment: Comment, own: bool, seen: Layout) -> tuple[int, int]:
    """The lines of the statement that a comment stands in, or of the next one when it has a line of its own.

    Above decorators it covers them and the line of the `def` or `class` as well.
    """
    index = bisect_left(seen.statements, comment.line, key=lambda lines: lines[1])
    if index == len(seen.statements):
        return comment.line, comment.line
    first, last = seen.statements[index]
    if first <= comment.line:
        return first, last
    if not own:
        return comment.line, comment.line
    starts = line_starts(code)
    while code[starts[seen.statements[index][0] - 1] :].lstrip().startswith("@") and index + 1 < len(seen.statements):
        index += 1
    return comment.line, seen.statements[index][1]


def _removal(code: str, comment: Comment, start: int, end: int) -> Edit:
    """Delete the pragma: with the spaces before it, with its line when that is all there is, never another comment."""
    if end < comment.end:
        low, high = start, end
    elif start == comment.start and comment.own:
        low = start - (comment.column - 1)
        ending = re.compile(r"\r\n|\r|\n|\Z").match(code, comment.end)
        high = ending.end() if ending else comment.end
    else:
        low, high = len(code[:start].rstrip(" \t\f")), comment.end
    return Edit(byte_offset(code, low), byte_offset(code, high), "")
