"""Selectors (`AMP201`, `AMP2`, `clip-before-unscale`, `ALL`) -> the set of rules that are on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.errors import SelectorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What the tool says about its own work stays on when only some rules are selected: a file that could not be
# checked must not look clean. Ignoring these codes by name is possible all the same.
ALWAYS = frozenset({"AMP001", "AMP003", "AMP004"})
OPT_IN = "AMP9"
# Found in a profile, never in source.
PROBED = "AMP6"

_CODE = re.compile(r"AMP\d{0,3}")


@dataclass(frozen=True, slots=True)
class Choice:
    """What one place, the command line or a file, says about rules; `select` None leaves the lower place's choice."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    extend_ignore: tuple[str, ...] = ()


def chosen(codes: Mapping[str, str], choices: Iterable[Choice]) -> frozenset[str]:
    """The codes that are on; later choices beat earlier ones, inside one the most specific selector wins."""
    on = {code for code in codes if not code.startswith(OPT_IN)}
    for choice in choices:
        if choice.select is not None:
            on &= ALWAYS
        wanted = (*(choice.select or ()), *choice.extend_select)
        unwanted = (*choice.ignore, *choice.extend_ignore)
        if not wanted and not unwanted:
            continue
        for code, name in codes.items():
            plus, minus = _strength(wanted, code, name), _strength(unwanted, code, name)
            if plus > minus:
                on.add(code)
            elif minus:
                on.discard(code)
    return frozenset(on)


def matching(selectors: Iterable[str], codes: Mapping[str, str]) -> frozenset[str]:
    """The codes that any of `selectors` stands for."""
    listed = tuple(selectors)
    return frozenset(code for code, name in codes.items() if _strength(listed, code, name))


def stands_for(selector: str, code: str, name: str) -> bool:
    """True when `selector` names the rule `code`, alone or among others."""
    return _strength((selector,), code, name) > 0


def covers(pattern: str, root: str, file: str) -> bool:
    """True when a glob of per-file-ignores means `file`: by its name, or by its path below `root`."""
    if pattern.startswith("!"):
        return not covers(pattern[1:], root, file)
    from fnmatch import fnmatchcase

    wanted = pattern.removeprefix("./")
    if wanted.endswith("/"):
        wanted += "*"
    path, top = file.replace("\\", "/"), root.replace("\\", "/").rstrip("/") + "/"
    # For fnmatch a star crosses slashes, so `**/` only has to be allowed to stand for nothing.
    spellings = {wanted, wanted.replace("**/", "")}
    texts = (path.rpartition("/")[2], path.removeprefix(top))
    return any(fnmatchcase(text, glob) for text in texts for glob in spellings)


def checked_selector(text: str, codes: Mapping[str, str]) -> str:
    """`text` as a selector in its usual spelling; SelectorError with a suggestion when no rule has it."""
    selector = text.strip()
    upper = selector.upper()
    if upper == "ALL" or (_CODE.fullmatch(upper) and any(code.startswith(upper) for code in codes)):
        return upper
    if selector in codes.values():
        return selector
    from difflib import get_close_matches

    known = [*codes, *codes.values()]
    close = get_close_matches(selector, known, n=1) or get_close_matches(upper, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "`amp-doctor rules` lists them"
    raise SelectorError(f"no rule is called {selector!r}; {hint}")


def _strength(selectors: tuple[str, ...], code: str, name: str) -> int:
    """How specific the most specific of `selectors` is that stands for the rule; 0 when none does."""
    best = 0
    for selector in selectors:
        if selector in (code, name):
            return 100
        if selector == "ALL":
            best = max(best, 1)
        elif code.startswith(selector):
            best = max(best, len(selector))
    return best
