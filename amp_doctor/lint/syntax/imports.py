"""Import statements -> trace nodes, the names they bind noted in the import table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from amp_doctor.lint import trace as t
from amp_doctor.lint.syntax.names import Reference, dotted

if TYPE_CHECKING:
    from amp_doctor.lint.syntax.lower import Lowering


def import_(low: Lowering, node: cst.Import) -> None:
    """`import a.b as c`."""
    names = []
    for alias in node.names:
        full = dotted(alias.name) or ""
        local = alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else None
        bound = (local, full, 0) if local else (full.split(".")[0], full.split(".")[0], 0)
        names.append(bound)
        low.words[-1].update(full.split("."))
        low.imports.bind(bound[0], bound[1])
        _refer(low, full, node, alias.name, "import", local or "")
    low.emit(t.Import(low.at(node), tuple(names)))


def import_from(low: Lowering, node: cst.ImportFrom) -> None:
    """`from a import b as c`; relative ones are told by their level."""
    module = dotted(node.module) if node.module is not None else ""
    level = len(node.relative)
    if isinstance(node.names, cst.ImportStar):
        low.imports.star(module or "")
        return
    names = []
    for alias in node.names:
        name = alias.name.value if isinstance(alias.name, cst.Name) else ""
        local = alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else name
        full = f"{module}.{name}" if module else name
        names.append((local, full, level))
        low.words[-1].update(full.split("."))
        if level == 0:
            low.imports.bind(local, full)
            _refer(low, full, node, alias, "from-import", local if local != name else "")
    low.emit(t.Import(low.at(node), tuple(names)))


def _refer(low: Lowering, name: str, node: cst.CSTNode, part: cst.CSTNode, how: str, alias: str) -> None:
    """Note the mention of a name that is reported."""
    if low.imports.reported(name):
        at = low.at(node)
        low.references.append(Reference(at, low.at(part), name, how, low.guard > 0, alias=alias))
