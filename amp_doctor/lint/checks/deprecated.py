"""AMP101 to AMP105: names that are deprecated, and the move of a whole file to their successors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amp_doctor.finding import Applicability, Edit, Fix
from amp_doctor.lint.checks import mentions
from amp_doctor.lint.checks.flags import flag_term
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, Reference, check
from amp_doctor.lint.events import OpCall
from amp_doctor.lint.objects import Api, Literal

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from amp_doctor.lint.checks.mentions import Mention
    from amp_doctor.lint.checks.scopes import Imported, Names, Scope

_NAME = re.compile(
    r"torch\.(cuda|cpu)\.amp\.(?:autocast_mode\.|grad_scaler\.)?(autocast|GradScaler|custom_fwd|custom_bwd)$"
)
_MODULE = re.compile(r"torch\.(cuda|cpu)\.amp(\.autocast_mode|\.grad_scaler)?$")
_CODES = {"autocast": "AMP101", "GradScaler": "AMP102", "custom_fwd": "AMP103", "custom_bwd": "AMP103"}
_ORDERS = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
}
_SINCE = {"AMP101": (2, 4), "AMP102": (2, 3), "AMP103": (2, 4), "AMP104": (2, 4)}


@dataclass(slots=True, eq=False)
class Site:
    """One place where a deprecated name stands, with the edits that move it; None when it cannot be moved."""

    mention: Mention
    code: str
    device: str
    name: str
    edits: tuple[Edit, ...] | None = None
    sure: bool = True

    @property
    def at(self) -> int:
        """The node that is reported."""
        reference = self.mention.reference
        return reference.func_at if reference.how in mentions.IMPORTS else reference.at

    @property
    def shared(self) -> bool:
        """It goes through an import that only this name, or its module, is reached by."""
        return self.mention.full not in ("", "torch", "torch.cuda", "torch.cpu")


@dataclass(slots=True, eq=False)
class Group:
    """All that goes through one imported name: moved together or not at all."""

    local: str
    scope: Scope
    bindings: list[Imported] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)


@check("AMP101", on=Finished)
def deprecated_autocast(at: Moment[Finished]) -> Iterator[Draft]:
    yield from _findings(at)


@check("AMP102", on=Finished)
def deprecated_scaler(at: Moment[Finished]) -> Iterator[Draft]:
    yield from _findings(at)


@check("AMP103", on=Finished)
def deprecated_decorator(at: Moment[Finished]) -> Iterator[Draft]:
    yield from _findings(at)


def _findings(at: Moment[Finished]) -> Iterator[Draft]:
    """What is deprecated under this code, each place with the fix that it is part of."""
    if at.torch_version is not None and at.torch_version < _SINCE[at.code]:
        return
    facts = at.interpreter.facts
    if "deprecated" not in facts:
        sites = [site for reference in at.module.references if (site := _site(at, reference)) is not None]
        facts["deprecated"] = sites, _fixes(at, sites) if sites else {}  # most files: nothing to look up
    sites, fixes = facts["deprecated"]
    for site in sites:
        if site.code == at.code:
            old = f"torch.{site.device}.amp.{site.name}"
            new = f'torch.amp.{site.name}("{site.device}", ...)'
            if site.code == "AMP103":
                new = f'torch.amp.{site.name}(device_type="{site.device}")'
            yield at.finding(f"{old} is deprecated since torch 2.4: write {new}", at=site.at, fix=fixes.get(site))


def _site(at: Moment[Finished], reference: Reference) -> Site | None:
    found = _NAME.match(reference.name)
    if found is None or reference.guarded or (found[1] == "cpu" and found[2].startswith("custom")):
        return None
    imports = [one for one in at.module.references if one.how in mentions.IMPORTS and one.name == reference.name]
    if imports and all(one.guarded for one in imports):
        return None  # every way to the name stands behind a version test; no place need be computed to know that
    mention = mentions.mention(at, reference)
    if mention is None:
        return None
    site = Site(mention, _CODES[found[2]], found[1], found[2])
    if mention.local:
        _move(at, site)
    return site


def _move(at: Moment[Finished], site: Site) -> None:
    """Work out the edits of a place that is no import."""
    how = site.mention.reference.how
    spelling = _spelling(at, site)
    if spelling is None:
        return
    if how in ("annotation", "instance"):
        # The successor is the base class: with the import moved the test accepts old and new objects.
        site.edits, site.sure = ((), False) if site.shared and not spelling else (None, True)
    elif how in ("call", "decorator"):
        arguments = _arguments(at, site)
        if arguments is not None:
            site.edits = (*spelling, *arguments)
            positional = any(key is None for key, _ in site.mention.reference.args)
            site.sure = site.code == "AMP103" or not positional


def _spelling(at: Moment[Finished], site: Site) -> tuple[Edit, ...] | None:
    """The edit that makes the written name the new one, given that a shared import is moved."""
    mention = site.mention
    if not re.fullmatch(r"[\w.]+", mention.text):
        return None
    if mention.full == "torch":
        new = f"{mention.local}.amp.{site.name}"
    elif _MODULE.match(mention.full):
        new = f"{mention.local}.{site.name}"
    elif _NAME.match(mention.full):
        return ()
    else:
        known = mentions.names(at)
        bound = known.module.imports.get("torch", []) if known is not None else []
        if not bound or known is None or "torch" in known.module.others or bound[0].full != "torch":
            return None
        new = f"torch.amp.{site.name}"
    if new == mention.text:
        return ()
    return (Edit(mention.start, mention.start + len(mention.text), new),)


def _arguments(at: Moment[Finished], site: Site) -> tuple[Edit, ...] | None:
    """The edits that give the call its device."""
    reference = site.mention.reference
    if site.code == "AMP103":
        device = f'device_type="{site.device}"'
        if reference.how == "decorator":
            _, end = at.module.places.bytes_of(reference.func_at)
            return (Edit(end, end, f"({device})"),)
        if any(key in ("*", "device_type") for key, _ in reference.args):
            return None
        if reference.args and reference.args[0][0] is None:
            return (mentions.put_last(at, reference, device),)
        return (mentions.put_first(at, reference, device),)
    if reference.how == "decorator":
        return None
    first = mentions.argument(reference, 0, "")
    if site.name == "GradScaler" and first is not None and flag_term(first[2]):
        return None  # a flag as the scale is AMP107; to name it init_scale would set it in stone
    return mentions.with_device(at, reference, site.device, _ORDERS[site.name])


def _fixes(at: Moment[Finished], sites: list[Site]) -> dict[Site, Fix]:
    """Each place that stands alone gets a fix of its own; all that goes through imports is one fix."""
    fixed_default = not any(re.match(r"torch\.set_autocast_\w*dtype$", one.name) for one in at.module.references)
    stuck = {site.name for site in sites if site.mention.reference.how == "instance" and site.edits is None}
    fixes: dict[Site, Fix] = {}

    def fix(edits: list[Edit], of: list[Site]) -> None:
        safe = all(site.sure and (site.name != "autocast" or fixed_default) for site in of)
        words = ", ".join(sorted({site.name for site in of}))
        made = Fix(Applicability.SAFE if safe else Applicability.UNSAFE, f"use torch.amp for {words}", tuple(edits))
        fixes.update((site, made) for site in of)

    for site in sites:
        if site.edits and not site.shared and site.name not in stuck:
            fix(list(site.edits), [site])
    known = mentions.names(at)
    if known is None:
        return fixes
    groups, edits = _movable(known, _groups(known, sites))
    moved = [site for group in groups for site in group.sites]
    starts = {known.offset(one.alias) for group in groups for one in group.bindings}
    imports = [one for one in sites if one.mention.reference.how in mentions.IMPORTS and one.mention.start in starts]
    if moved:
        fix(sorted({*edits, *(edit for site in moved for edit in site.edits or ())}), [*moved, *imports])
    return fixes


def _groups(known: Names, sites: list[Site]) -> list[Group]:
    """The groups of which every use is a place that can be moved."""
    groups: dict[tuple[Scope, str], Group] = {}
    for site in sites:
        if site.shared:
            mention = site.mention
            key = (mention.scope, mention.local)
            bindings = mention.scope.imports[mention.local]
            groups.setdefault(key, Group(mention.local, mention.scope, bindings)).sites.append(site)
    return [group for group in groups.values() if _whole(known, group)]


def _whole(known: Names, group: Group) -> bool:
    places = {site.mention.start for site in group.sites if site.edits is not None}
    uses = {load.offset for load in known.loads.values() if load.scope is group.scope and load.name == group.local}
    return uses == places and not (group.scope is known.module and group.local in known.exported)


def _movable(known: Names, groups: list[Group]) -> tuple[list[Group], list[Edit]]:
    """The groups whose import statements can be changed, and the edits of these statements."""
    while True:
        moved: dict[ast.Import | ast.ImportFrom, set[ast.alias]] = {}
        for group in groups:
            for binding in group.bindings:
                moved.setdefault(binding.statement, set()).add(binding.alias)
        edits = {statement: _moved_import(known, statement, aliases) for statement, aliases in moved.items()}
        stuck = {statement for statement, edit in edits.items() if edit is None}
        if not stuck:
            return groups, [edit for edit in edits.values() if edit is not None]
        groups = [group for group in groups if not any(one.statement in stuck for one in group.bindings)]


def _moved_import(known: Names, statement: ast.Import | ast.ImportFrom, aliases: set[ast.alias]) -> Edit | None:
    """The import statement after the names in `aliases` have moved to torch.amp."""
    start, end = known.offset(statement), known.end(statement)
    text = known.raw[start:end].decode()
    if not hasattr(statement, "module"):
        (alias, *more) = aliases
        place = known.offset(alias)
        return None if more else Edit(place, place + len(alias.name), "torch.amp")
    module = re.match(r"from\s+([\w.]+)", text)
    if module is None:
        return None
    new = "torch" if module[1] in ("torch.cuda", "torch.cpu") else "torch.amp"
    if len(aliases) == len(statement.names):
        return Edit(start + module.start(1), start + module.end(1), new)
    line = known.raw.rfind(b"\n", 0, start) + 1
    indent = known.raw[line:start].decode()
    after = known.raw[end:].split(b"\n", 1)[0].strip()
    if "#" in text or indent.strip() or after:
        return None
    newline = "\r\n" if b"\r\n" in known.raw else "\n"
    kept = ", ".join(_written(one) for one in statement.names if one not in aliases)
    gone = ", ".join(_written(one) for one in statement.names if one in aliases)
    return Edit(start, end, f"from {new} import {gone}{newline}{indent}from {module[1]} import {kept}")


def _written(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


_GETTER = re.compile(
    r"torch\.(?:(get|set)_autocast_(gpu|cpu|ipu|xla|hpu)_dtype|(is|set)_autocast_(cpu|ipu|xla|hpu)_enabled)$"
)


@check("AMP104", on=Reference)
def deprecated_getter(at: Moment[Reference]) -> Iterator[Draft]:
    reference = at.event
    found = _GETTER.match(reference.name)
    if found is None or reference.guarded or (at.torch_version is not None and at.torch_version < _SINCE[at.code]):
        return
    mention = mentions.mention(at, reference)
    if mention is None:
        return
    old = reference.name.removeprefix("torch.")
    device = {"gpu": "cuda"}.get(found[2], found[2]) or found[4]
    new = f"{found[1]}_autocast_dtype" if found[1] else f"{found[3]}_autocast_enabled"
    fix = None
    if reference.how == "call" and mention.full == "torch" and not mentions.open_ended(reference):
        end = mention.start + len(mention.text)
        name = Edit(end - len(old), end, new)
        given = mentions.put_first(at, reference, f'"{device}"')
        if mention.text.endswith(f".{old}") and all(key is None for key, _ in reference.args):
            fix = at.fix(f"use torch.{new}", Applicability.SAFE, name, given)
    place = reference.func_at if reference.how in mentions.IMPORTS else reference.at
    yield at.finding(f'torch.{old} is deprecated: write torch.{new}("{device}", ...)', at=place, fix=fix)


@check("AMP105", on=Finished)
def half_default(at: Moment[Finished]) -> Iterator[Draft]:
    """The default dtype is set to float16 and, as far as seen, not back again."""
    settings = [event for event in at.event.log if isinstance(event, OpCall) and _DEFAULT.match(event.name)]
    for event in settings:
        restored = any(other.at > event.at and not _half_default(other) for other in settings)
        if _half_default(event) and not restored:
            yield at.finding("every new parameter is float16 from here on: that is not mixed precision", at=event.at)


_DEFAULT = re.compile(r"torch\.set_default_(dtype|tensor_type)$")
_HALF = re.compile(r"(torch\.)?(float16|half|(cuda\.)?HalfTensor)$")


def _half_default(event: OpCall) -> bool:
    value = event.arg(0, "d") or event.arg(0, "t")
    name = value.name if isinstance(value, Api) else value.value if isinstance(value, Literal) else None
    return isinstance(name, str) and _HALF.match(name) is not None
