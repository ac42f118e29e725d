"""Names: any spelling of an imported one -> its canonical dotted name, and the words that an expression is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from amp_doctor.lint.trace import Term

_REPORTED = (
    "torch.cuda.amp",
    "torch.cpu.amp",
    "torch.amp",
    "torch.autocast",
    "torch.GradScaler",
    "torch.get_autocast",
    "torch.set_autocast",
    "torch.is_autocast",
    "torch.set_default",
    "torch._C",
    "apex",
)
"""Prefixes of the names whose every mention is recorded, executed or not."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One mention of an API: `how` is call, decorator, name, annotation, instance (the class of an isinstance
    test), import or from-import; `guarded` when it stands in an import fallback or a version test; `used` is
    False for a call that is a statement of its own."""

    at: int
    func_at: int
    name: str
    how: str
    guarded: bool
    args: tuple[tuple[str | None, Term], ...] = ()
    arg_ats: tuple[int, ...] = ()
    alias: str = ""
    used: bool = True


class ImportTable:
    """Local name -> canonical name, over the whole file (a later import of the same name wins)."""

    def __init__(self) -> None:
        self.table: dict[str, str] = {}
        self.stars: list[str] = []

    def bind(self, local: str, full: str) -> None:
        """Remember what an import binds."""
        # The first of two fallbacks is the modern one in practice; keep it.
        if local not in self.table or not self.table[local].startswith("torch.amp"):
            self.table[local] = full

    def star(self, module: str) -> None:
        """Remember a star import."""
        self.stars.append(module)

    def may_report(self, node: cst.BaseExpression) -> bool:
        """Cheap test before the dotted name is built: is the root an import that we report on?"""
        while isinstance(node, cst.Attribute):
            node = node.value
        return isinstance(node, cst.Name) and self.table.get(node.value, "").startswith(("torch", "apex"))

    def resolve(self, name: str | None) -> str | None:
        """Canonical form of a dotted name, or None when its root was not imported."""
        if not name:
            return None
        root, _, rest = name.partition(".")
        full = self.table.get(root)
        if full is None:
            return None
        return f"{full}.{rest}" if rest else full

    def reported(self, name: str) -> bool:
        """True for names whose every mention is recorded."""
        return name.startswith(_REPORTED)


_VERSION_WORD = re.compile(
    r"version|hasattr|^parse$|at_least|torch_?(ge|gte|gt|greater|lt|less|newer|older|v?\d)|_(ge|gte|lt)_?\d",
    re.IGNORECASE,
)


def tests_version(words: set[str]) -> bool:
    """True when the words of a condition ask what the installed torch can do."""
    return any(_VERSION_WORD.search(word) for word in words)


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` as text, or None for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def words_of(node: cst.CSTNode) -> set[str]:
    """Every identifier in a condition or an exception type (other kinds of expression hold none of interest)."""
    match node:
        case cst.Name(value):
            return {value}
        case cst.Attribute():
            return {node.attr.value} | words_of(node.value)
        case cst.Call():
            return words_of(node.func).union(*(words_of(arg.value) for arg in node.args))
        case cst.Comparison():
            return words_of(node.left).union(*(words_of(part.comparator) for part in node.comparisons))
        case cst.BooleanOperation():
            return words_of(node.left) | words_of(node.right)
        case cst.UnaryOperation():
            return words_of(node.expression)
        case cst.Tuple():
            return set().union(*(words_of(element.value) for element in node.elements))
        case _:
            return set()
