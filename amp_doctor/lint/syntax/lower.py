"""LibCST tree -> trace: one pass over the nodes that matter, whitespace never touched.

Statements become trace nodes, here or in `imports`, `definitions`, `patterns` and `tries`; expressions become terms in
`expressions`, their calls, choices and comprehensions hoisted into leaves in evaluation order (see `lint.trace`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from amp_doctor.lint import trace as t
from amp_doctor.lint.syntax import definitions, expressions, imports, patterns, tries
from amp_doctor.lint.syntax.names import ImportTable, Reference, dotted, tests_version, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(slots=True)
class Lowered:
    """What syntax hands over: the module's trace, its functions and classes, and facts about names."""

    body: t.Seq
    nodes: list[cst.CSTNode]
    functions: list[t.Function]
    classes: list[t.ClassDef]
    references: list[Reference]
    uses: dict[str, set[str]]
    words: frozenset[str]
    parents: dict[int, int] = field(default_factory=dict)


def lower(module: cst.Module, base: int, number: int) -> Lowered:
    """Lower a parsed module; node numbers start at `base`, `number` tags its functions and classes."""
    lowering = Lowering(base, number)
    body = lowering.block(module.body)
    return Lowered(
        body,
        lowering.nodes,
        lowering.functions,
        lowering.classes,
        lowering.references,
        lowering.uses,
        frozenset(lowering.words[0]),
        lowering.statement_of,
    )


class Lowering:
    """The pass over one module: what it has emitted so far, and the names, words and nodes met on the way."""

    def __init__(self, base: int, number: int) -> None:
        self.base = base
        self.number = number
        self.nodes: list[cst.CSTNode] = []
        self.out: list[t.Trace] = []
        self.functions: list[t.Function] = []
        self.classes: list[t.ClassDef] = []
        self.owner: list[t.ClassDef | None] = [None]
        self.references: list[Reference] = []
        self.imports = ImportTable()
        self.uses: dict[str, set[str]] = {}
        self.words: list[set[str]] = [set()]
        self.yields: list[bool] = [False]
        self.guard = 0
        self.role = "name"
        self.version_flags: set[str] = set()
        self.statement = 0
        self.statement_of: dict[int, int] = {}
        self.temps = 0
        self.testing = False

    def at(self, node: cst.CSTNode) -> int:
        self.nodes.append(node)
        number = self.base + len(self.nodes) - 1
        self.statement_of[number] = self.statement
        return number

    def fresh(self) -> str:
        self.temps += 1
        return f"%{self.temps}"

    def emit(self, item: t.Trace) -> None:
        self.out.append(item)

    def collect(self, work: Callable[[], Any]) -> tuple[t.Seq, Any]:
        """Run `work` and return what it emitted, with its result."""
        saved, self.out = self.out, []
        try:
            result = work()
            return t.Seq(tuple(self.out)), result
        finally:
            self.out = saved

    def block(self, body: Sequence[cst.BaseStatement] | cst.BaseSuite) -> t.Seq:
        statements: Sequence[Any] = body.body if isinstance(body, cst.BaseSuite) else body

        def work() -> None:
            if isinstance(body, cst.SimpleStatementSuite):
                self.small_statements(body.body)
                return
            guards = 0
            for statement in statements:
                self.statement_node(statement)
                if isinstance(statement, cst.If) and self.guards(statement.test) and _leaves(statement.body):
                    # What follows `if torch is new: return ...` is the other arm.
                    self.guard += 1
                    guards += 1
            self.guard -= guards

        return self.collect(work)[0]

    def guards(self, test: cst.BaseExpression) -> bool:
        """True when a condition asks for the version of torch, or for what it has."""
        words = words_of(test)
        return tests_version(words) or bool(words & self.version_flags)

    def statement_node(self, node: Any) -> None:
        outer = self.statement
        self.nodes.append(node)
        self.statement = self.base + len(self.nodes) - 1
        number = self.statement
        self.statement_of[number] = outer
        temps = self.temps
        if isinstance(node, cst.SimpleStatementLine):
            seq, _ = self.collect(lambda: self.small_statements(node.body))
        else:
            handler = _STATEMENTS.get(type(node))
            seq, _ = self.collect(lambda: handler(self, node) if handler else None)
        self.emit(t.Stmt(number, seq, temps))
        self.statement = outer

    def small_statements(self, body: Sequence[cst.BaseSmallStatement]) -> None:
        for small in body:
            handler = _SMALL.get(type(small))
            if handler:
                handler(self, small)

    def expr(self, node: cst.Expr) -> None:
        if isinstance(node.value, cst.Call):
            expressions.call(self, node.value, used=False)
        elif not isinstance(node.value, cst.SimpleString | cst.ConcatenatedString):
            self.emit(t.Evaluate(self.at(node), self.term(node.value)))

    def assign(self, node: cst.Assign) -> None:
        asked = node.value.func if isinstance(node.value, cst.Call) else node.value
        if isinstance(asked, cst.Name | cst.Attribute | cst.Comparison | cst.BooleanOperation) and self.guards(asked):
            self.version_flags |= {
                target.target.value for target in node.targets if isinstance(target.target, cst.Name)
            }
        value = self.term(node.value)
        for target in node.targets:
            self.bind(target.target, value, node)

    def ann_assign(self, node: cst.AnnAssign) -> None:
        self.quiet(node.annotation.annotation)
        if node.value is not None:
            self.bind(node.target, self.term(node.value), node)

    def aug_assign(self, node: cst.AugAssign) -> None:
        value = self.term(node.value)
        operator = type(node.operator).__name__.removesuffix("Assign")
        self.emit(t.Augment(self.at(node), self.term(node.target), operator, value))

    def bind(self, target: cst.CSTNode, value: t.Term, node: cst.CSTNode) -> None:
        self.emit(t.Bind(self.at(node), self.term(target), value))

    def return_(self, node: cst.Return) -> None:
        value = self.term(node.value) if node.value is not None else None
        self.emit(t.Exit(self.at(node), "return", value))

    def raise_(self, node: cst.Raise) -> None:
        if node.exc is not None:
            self.term(node.exc)
        self.emit(t.Exit(self.at(node), "raise"))

    def delete(self, node: cst.Del) -> None:
        targets = node.target.elements if isinstance(node.target, cst.Tuple) else [node.target]
        for target in targets:
            value = target.value if isinstance(target, cst.Element) else target
            self.emit(t.Forget(self.at(node), self.term(value)))

    def assert_(self, node: cst.Assert) -> None:
        test = self.term(node.test)
        self.emit(t.Branch(self.at(node), test, t.Seq(), t.Seq((t.Exit(self.at(node), "raise"),))))

    def global_(self, node: cst.Global | cst.Nonlocal) -> None:
        for item in node.names:
            self.emit(t.Bind(self.at(node), t.Name(0, f"{item.name.value}%global"), t.Const(0, True)))

    def if_(self, node: cst.If) -> None:
        test = self.test(node.test)
        guard = self.guards(node.test)
        self.guard += guard
        then = self.block(node.body)
        other = t.Seq()
        if isinstance(node.orelse, cst.If):
            chained = node.orelse
            other, _ = self.collect(lambda: self.if_(chained))
        elif node.orelse is not None:
            other = self.block(node.orelse.body)
        self.guard -= guard
        self.emit(t.Branch(self.at(node), test, then, other))

    def for_(self, node: cst.For) -> None:
        source = self.term(node.iter)
        target = self.term(node.target)
        body = self.block(node.body)
        other = self.block(node.orelse.body) if node.orelse else t.Seq()
        self.emit(t.Loop(self.at(node), t.Seq(), None, target, source, body, other))

    def while_(self, node: cst.While) -> None:
        head, test = self.collect(lambda: self.test(node.test))
        body = self.block(node.body)
        other = self.block(node.orelse.body) if node.orelse else t.Seq()
        self.emit(t.Loop(self.at(node), head, test, None, None, body, other))

    def with_(self, node: cst.With) -> None:
        def nest(items: Sequence[cst.WithItem]) -> None:
            if not items:
                for item in self.block(node.body).items:
                    self.emit(item)
                return
            context = self.term(items[0].item)
            target = self.term(items[0].asname.name) if items[0].asname is not None else None
            at = self.at(items[0].item)
            body, _ = self.collect(lambda: nest(items[1:]))
            self.emit(t.With(at, context, target, body))

        nest(node.items)

    def quiet(self, node: cst.BaseExpression) -> t.Term:
        """An annotation: its names count as references, its calls are not executed."""
        term: t.Term
        saved, self.role = self.role, "annotation"
        _, term = self.collect(lambda: self.term(node))
        self.role = saved
        return term

    def test(self, node: cst.BaseExpression) -> t.Term:
        """A condition: what `and` and `or` were made of stays visible in it."""
        saved, self.testing = self.testing, True
        try:
            return self.term(node)
        finally:
            self.testing = saved

    def term(self, node: cst.CSTNode, report: bool = True) -> t.Term:
        handler = expressions.HANDLERS.get(type(node))
        if handler is None:
            return t.Opaque(self.at(node), ())
        if report and isinstance(node, cst.Attribute | cst.Name):
            self.reference(node)
        result: t.Term = handler(self, node)
        return result

    def reference(self, node: cst.BaseExpression) -> None:
        if self.imports.may_report(node):
            name = self.imports.resolve(dotted(node))
            if name and self.imports.reported(name):
                self.references.append(Reference(self.at(node), self.at(node), name, self.role, self.guard > 0))


def _leaves(body: cst.BaseSuite) -> bool:
    """The block ends in return, raise, continue or break."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1] if last.body else None
    return isinstance(last, cst.Return | cst.Raise | cst.Continue | cst.Break)


_L = Lowering
_SMALL: dict[type, Callable[[Lowering, Any], None]] = {
    cst.Expr: _L.expr,
    cst.Assign: _L.assign,
    cst.AnnAssign: _L.ann_assign,
    cst.AugAssign: _L.aug_assign,
    cst.Return: _L.return_,
    cst.Raise: _L.raise_,
    cst.Del: _L.delete,
    cst.Assert: _L.assert_,
    cst.Import: imports.import_,
    cst.ImportFrom: imports.import_from,
    cst.Global: _L.global_,
    cst.Nonlocal: _L.global_,
    cst.Break: lambda self, node: self.emit(t.Exit(self.at(node), "break")),
    cst.Continue: lambda self, node: self.emit(t.Exit(self.at(node), "continue")),
}
_STATEMENTS: dict[type, Callable[[Lowering, Any], None]] = {
    cst.If: _L.if_,
    cst.For: _L.for_,
    cst.While: _L.while_,
    cst.Try: tries.try_,
    cst.TryStar: tries.try_,
    cst.With: _L.with_,
    cst.FunctionDef: definitions.function,
    cst.ClassDef: definitions.class_,
    cst.Match: patterns.match,
}
