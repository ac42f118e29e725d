"""What the functions and classes of a project are called with: what is passed, and the defaults of what is left out."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# By the name of a parameter: the functions or classes that have it, each with an expression.
Owned = dict[str, list[tuple[str, ast.expr]]]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression of names and attributes; empty for any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


class Parameters:
    """`learn` takes the nodes of a tree, from the top down, and `bind` comes after all of them."""

    def __init__(self) -> None:
        self._defaults: Owned = {}
        self._fields: Owned = {}
        self._passed: Owned = {}
        self._defined: set[str] = set()
        self._signatures: dict[str, list[str]] = {}
        self._calls: list[tuple[str, ast.Call]] = []
        # What each call of a name passes.
        self._called: dict[str, list[set[str]]] = {}
        # Nodes that have been told of by the class around them.
        self._inside: set[ast.AST] = set()

    def learn(self, node: ast.AST) -> None:
        """Take down a function, a class or a call."""
        if isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            name = node.name if isinstance(node, ast.FunctionDef) else ""
            self._defined |= {name} - {""}
            if node not in self._inside:
                self._function(name, node.args)
        elif isinstance(node, ast.Call):
            self._calls.append((dotted(node.func).rpartition(".")[2], node))

    def _class(self, node: ast.ClassDef) -> None:
        """A class is called with the parameters of its `__init__`, or with its fields, as a dataclass is."""
        self._defined.add(node.name)
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        self._signatures[node.name] = [dotted(one.target) for one in fields]
        for one in fields:
            if one.value is not None:
                self._inside.add(one)
                self._fields.setdefault(dotted(one.target), []).append((node.name, one.value))
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                self._inside.add(method)
                self._function(node.name, method.args)

    def _function(self, owner: str, arguments: ast.arguments) -> None:
        named = [*arguments.posonlyargs, *arguments.args]
        self._signatures[owner] = [one.arg for one in named if one.arg not in ("self", "cls")]
        defaults = zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True)
        for one, standard in [*defaults, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]:
            if standard is not None:
                self._defaults.setdefault(one.arg, []).append((owner, standard))

    def bind(self) -> None:
        """Find the parameter of everything that is passed; from `*several` on that cannot be told."""
        for name, call in self._calls:
            starred = next((at for at, one in enumerate(call.args) if isinstance(one, ast.Starred)), len(call.args))
            placed = zip(self._signatures.get(name, ()), call.args[:starred], strict=False)
            passed = [*placed, *((one.arg, one.value) for one in call.keywords if one.arg)]
            for parameter, value in passed if name in self._defined else ():
                self._passed.setdefault(parameter, []).append((name, value))
            self._called.setdefault(name, []).append({parameter for parameter, _ in passed})

    def is_field(self, node: ast.AST) -> bool:
        """Whether it is the default of a field."""
        return node in self._inside

    def has_default(self, name: str) -> bool:
        """Whether there is a default anywhere, whether it holds or not."""
        return name in self._defaults or name in self._fields

    def passed(self, name: str) -> list[ast.expr]:
        """What calls of the project's own functions and classes pass as `name`."""
        return [value for _, value in self._passed.get(name, ())]

    def defaults(self, name: str) -> list[ast.expr]:
        """The defaults of a parameter that hold."""
        return self._left(name, self._defaults.get(name, ()))

    def fields(self, name: str) -> list[ast.expr]:
        """Likewise of a field of a class."""
        return self._left(name, self._fields.get(name, ()))

    def _left(self, name: str, standards: Iterable[tuple[str, ast.expr]]) -> list[ast.expr]:
        """Those that a call leaves out, and those of what nothing calls here."""
        called = self._called
        return [
            value
            for owner, value in standards
            if owner not in called or any(name not in passed for passed in called[owner])
        ]
