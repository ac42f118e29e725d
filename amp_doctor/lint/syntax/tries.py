"""`try` statements -> trace nodes; an import with a fallback is taken to succeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from amp_doctor.lint import trace as t
from amp_doctor.lint.syntax.names import words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.lint.syntax.lower import Lowering

_IMPORT_FAULTS = frozenset({"ModuleNotFoundError", "Exception"})
_MISSING = frozenset({"ImportError", "AttributeError", "TypeError"})  # what a name or parameter of a newer torch raises


def try_(low: Lowering, node: cst.Try | cst.TryStar) -> None:
    """What stands in the `except` of a missing import, or of a missing name, is for an older torch."""
    fallback = _only_imports(node.body)
    body = low.block(node.body)
    handlers = []
    for handler in node.handlers:
        faults = words_of(handler.type) if handler.type is not None else {"Exception"}
        guard = bool(_MISSING & faults) or (fallback and bool(_IMPORT_FAULTS & faults))
        low.guard += guard
        block = low.block(handler.body)
        low.guard -= guard
        if handler.name is not None and isinstance(handler.name.name, cst.Name):
            name = t.Name(0, handler.name.name.value)
            block = t.Seq((t.Forget(low.at(handler), name), *block.items))
        handlers.append(block)
    other = low.block(node.orelse.body) if node.orelse else t.Seq()
    final = low.block(node.finalbody.body) if node.finalbody else t.Seq()
    if fallback:
        # The import is taken to succeed; a flag that the handler would turn off is unknown.
        for item in _assigned(handlers):
            other = t.Seq((*other.items, t.Forget(low.at(node), t.Name(0, item))))
        low.emit(t.Seq((*body.items, *_definitions(handlers), *other.items, *final.items)))
        return
    low.emit(t.Try(low.at(node), body, tuple(handlers), other, final))


def _only_imports(body: cst.BaseSuite) -> bool:
    """A `try` body that imports, and perhaps sets a flag or an alias."""
    if not isinstance(body, cst.IndentedBlock):
        return False
    smalls = [small for line in body.body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
    if len(smalls) < len(body.body):
        return False
    kinds = [type(small) for small in smalls]
    return any(kind in (cst.Import, cst.ImportFrom) for kind in kinds) and all(
        kind in (cst.Import, cst.ImportFrom, cst.Assign, cst.Expr, cst.Pass) for kind in kinds
    )


def _assigned(blocks: Sequence[t.Seq]) -> list[str]:
    names = []
    for block in blocks:
        for statement in block.items:
            items = statement.body.items if isinstance(statement, t.Stmt) else ()
            names += [item.target.id for item in items if isinstance(item, t.Bind) and isinstance(item.target, t.Name)]
    return names


def _definitions(blocks: Sequence[t.Seq]) -> list[t.Trace]:
    """Fallback functions and classes still exist as definitions (to be linted), bound only if nothing else is."""
    found: list[t.Trace] = []
    for block in blocks:
        for statement in block.items:
            if isinstance(statement, t.Stmt):
                found += [item for item in statement.body.items if isinstance(item, t.Define | t.DefineClass)]
    return found
