"""Mentions of an API in the source: which binding they go through, and edits of the calls among them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Edit
from amp_doctor.lint.checks.scopes import Imported, Names, Scope, read

if TYPE_CHECKING:
    from amp_doctor.lint.checks.registry import Moment
    from amp_doctor.lint.syntax.names import Reference
    from amp_doctor.lint.trace import Term

IMPORTS = ("import", "from-import")
UNKNOWN = Scope("unknown", None)


@dataclass(frozen=True, slots=True)
class Mention:
    """A reference with what is written there: `text` starts with `local`, which `scope` binds to `full`."""

    reference: Reference
    start: int
    text: str
    local: str
    full: str
    scope: Scope


def names(at: Moment[Any]) -> Names | None:
    """The bindings of the file, read once."""
    facts = at.interpreter.facts
    if "names" not in facts:
        facts["names"] = read(at.module.code)
    found: Names | None = facts["names"]
    return found


def mention(at: Moment[Any], reference: Reference) -> Mention | None:
    """The mention that a reference is; None when its name means something else there, or has a fallback."""
    start, _ = at.module.places.bytes_of(reference.func_at)
    text = at.text(reference.func_at)
    if reference.how in IMPORTS:
        return Mention(reference, start, text, "", "", UNKNOWN)
    local = re.match(r"\w*", text)
    known = names(at)
    if known is None or local is None:
        return Mention(reference, start, text, "", "", UNKNOWN)
    load = known.loads.get(start)
    if load is None or load.scope is None or load.name in load.scope.others:
        return None
    bindings = load.scope.imports[load.name]
    if len({binding.full for binding in bindings}) > 1 or any(map(_guards(at, known).__contains__, bindings)):
        return None
    return Mention(reference, start, text, load.name, bindings[0].full, load.scope)


def _guards(at: Moment[Any], known: Names) -> set[Imported]:
    """The imports that stand in a fallback or a version test."""
    facts = at.interpreter.facts
    if "guarded imports" not in facts:
        places = at.module.places
        guarded = {
            places.bytes_of(reference.func_at)[0]
            for reference in at.module.references
            if reference.guarded and reference.how in IMPORTS
        }
        every = [one for scope in known.scopes for bound in scope.imports.values() for one in bound]
        facts["guarded imports"] = {one for one in every if known.offset(one.alias) in guarded}
    found: set[Imported] = facts["guarded imports"]
    return found


def reference_of(at: Moment[Any], call: int) -> Reference | None:
    """The reference that is this call, when it is written with the API's own name in the linted file."""
    facts = at.interpreter.facts
    if "calls" not in facts:
        facts["calls"] = {one.at: one for one in at.module.references if one.how == "call"}
    found: Reference | None = facts["calls"].get(call)
    return found


def open_ended(reference: Reference) -> bool:
    """The call has `*` or `**` among its arguments."""
    return any(key in ("*", "**") for key, _ in reference.args)


def argument(reference: Reference, position: int, keyword: str) -> tuple[int, int, Term] | None:
    """Index, node and term of one argument."""
    plain = [index for index, (key, _) in enumerate(reference.args) if key is None]
    for index, (key, term) in enumerate(reference.args):
        if key == keyword or (key is None and position < len(plain) and index == plain[position]):
            return index, reference.arg_ats[index], term
    return None


def put_first(at: Moment[Any], reference: Reference, text: str, then: str = "") -> Edit:
    """Make `text` the first argument of a call; `then` is written before the argument that was first."""
    places = at.module.places
    _, end = places.bytes_of(reference.func_at)
    inside = places.raw.index(b"(", end) + 1
    if not reference.args:
        return Edit(inside, inside, text)
    first, _ = places.bytes_of(reference.arg_ats[0])
    gap = places.raw[inside:first].decode()
    between = gap if "\n" in gap and "#" not in gap else " "
    return Edit(first, first, f"{text},{between}{then}")


def put_last(at: Moment[Any], reference: Reference, text: str) -> Edit:
    """Add an argument at the end of a call that has some."""
    _, end = at.module.places.bytes_of(reference.arg_ats[-1])
    return Edit(end, end, f", {text}")


def put_keyword(at: Moment[Any], reference: Reference, index: int, keyword: str) -> Edit:
    """Turn a positional argument into a keyword."""
    start, _ = at.module.places.bytes_of(reference.arg_ats[index])
    return Edit(start, start, f"{keyword}=")


def with_device(at: Moment[Any], reference: Reference, device: str, order: tuple[str, ...]) -> tuple[Edit, ...] | None:
    """A device as the first argument, and keywords for what was positional before; None when that is not clear."""
    plain = [index for index, (key, _) in enumerate(reference.args) if key is None]
    given = {key for key, _ in reference.args}
    if "*" in given or len(plain) > len(order) or given & set(order[: len(plain)]):
        return None
    first = f"{order[0]}=" if plain else ""
    rest = tuple(put_keyword(at, reference, index, order[index]) for index in plain[1:])
    return (put_first(at, reference, f'"{device}"', first), *rest)
