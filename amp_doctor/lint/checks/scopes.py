"""Which binding a name of the file refers to: what a fix must know before it changes an import."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Imported:
    """One name that an import statement binds."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias

    @property
    def full(self) -> str:
        """The canonical dotted name that is bound."""
        if isinstance(self.statement, ast.ImportFrom):
            return f"{'.' * self.statement.level}{self.statement.module or ''}.{self.alias.name}"
        return self.alias.name if self.alias.asname else self.alias.name.partition(".")[0]


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class or function: what it binds by import, and what in any other way."""

    kind: str
    parent: Scope | None
    imports: dict[str, list[Imported]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)

    def binds(self, name: str) -> bool:
        """True when the name is this scope's own."""
        return name in self.imports or name in self.others


@dataclass(frozen=True, slots=True)
class Load:
    """One reading of a name, and the scope whose binding it sees (None: a builtin, or unknown)."""

    name: str
    offset: int
    scope: Scope | None
    inside: Scope


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Every name of a file with its binding; offsets are in bytes of the UTF-8 text."""

    raw: bytes
    tree: ast.Module
    lines: tuple[int, ...]
    module: Scope
    scopes: tuple[Scope, ...]
    loads: dict[int, Load]
    exported: frozenset[str]

    def offset(self, node: ast.expr | ast.stmt | ast.alias) -> int:
        """Where a node starts."""
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.alias) -> int:
        """Where a node ends."""
        return self.lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def read(code: str) -> Names | None:
    """The names of a text; None when this Python does not understand it."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return None
    reader = _Reader(tree)
    raw = code.encode()
    lines = (0, *(place + 1 for place, byte in enumerate(raw) if byte == ord("\n")))
    names = Names(raw, tree, lines, reader.module, tuple(reader.scopes), {}, frozenset(reader.exported))
    for node, scope in reader.found:
        if node.lineno > len(lines):
            return None
        names.loads[names.offset(node)] = reader.load(node, scope, names.offset(node))
    return names


class _Reader(ast.NodeVisitor):
    """Collects bindings scope by scope; what a name means is settled afterwards."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope("module", None)
        self.scope = self.module
        self.scopes = [self.module]
        self.found: list[tuple[ast.Name, Scope]] = []
        self.exported: set[str] = set()
        self.generic_visit(tree)

    def load(self, node: ast.Name, inside: Scope, offset: int) -> Load:
        """What a reading of a name sees."""
        scope: Scope | None = inside
        while scope is not None and not (scope.binds(node.id) and (scope.kind != "class" or scope is inside)):
            scope = scope.parent
        return Load(node.id, offset, scope, inside)

    def bind(self, name: str | None) -> None:
        """A binding that is no import."""
        if name is not None:
            (self.module if name in self.scope.outer else self.scope).others.add(name)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.found.append((node, self.scope))
        else:
            self.bind(node.id)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            local = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            self.scope.imports.setdefault(local, []).append(Imported(node, alias))

    visit_ImportFrom = visit_Import  # noqa: N815 - the names ast wants

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            self.exported |= {str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.outer.update(node.names)

    visit_Nonlocal = visit_Global  # noqa: N815 - the names ast wants

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.bind(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs  # noqa: N815 - the names ast wants

    def inside(self, kind: str, *parts: ast.AST) -> None:
        """Visit the parts of a definition in a scope of its own."""
        self.scope = Scope(kind, self.scope)
        self.scopes.append(self.scope)
        for part in parts:
            self.visit(part)
        assert self.scope.parent is not None
        self.scope = self.scope.parent

    def outside(self, *parts: ast.AST | None) -> None:
        """Visit parts that belong to the scope around a definition."""
        for part in parts:
            if part is not None:
                self.visit(part)

    def visit_FunctionDef(self, node: FunctionNode) -> None:
        self.bind(node.name)
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        every += [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
        self.outside(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults, node.returns)
        self.outside(*(one.annotation for one in every))
        self.inside("function", *every, *node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the names ast wants

    def visit_arg(self, node: ast.arg) -> None:
        self.bind(node.arg)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.outside(*node.args.defaults, *node.args.kw_defaults)
        plain = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        plain += [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
        self.inside("function", *plain, node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bind(node.name)
        self.outside(*node.decorator_list, *node.bases, *node.keywords)
        self.inside("class", *node.body)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self.inside("function", *node.generators, node.elt)

    visit_SetComp = visit_GeneratorExp = visit_ListComp  # noqa: N815 - the names ast wants

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self.inside("function", *node.generators, node.key, node.value)
