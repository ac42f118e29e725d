"""Expressions -> terms: one function per node class of libcst; calls, choices and comprehensions are hoisted."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import libcst as cst

from amp_doctor.lint import trace as t
from amp_doctor.lint.syntax import definitions
from amp_doctor.lint.syntax.names import Reference, dotted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amp_doctor.lint.syntax.lower import Lowering

_CONSTANTS: dict[str, object] = {"None": None, "True": True, "False": False}
_COMPARISONS = {
    "Equal": "==",
    "NotEqual": "!=",
    "Is": "is",
    "IsNot": "is not",
    "In": "in",
    "NotIn": "not in",
    "LessThan": "<",
    "LessThanEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanEqual": ">=",
}


def name(low: Lowering, node: cst.Name) -> t.Term:
    if node.value in _CONSTANTS:
        return t.Const(low.at(node), _CONSTANTS[node.value])
    low.words[-1].add(node.value)
    return t.Name(low.at(node), node.value)


def attribute(low: Lowering, node: cst.Attribute) -> t.Term:
    low.words[-1].add(node.attr.value)
    return t.Attr(low.at(node), low.term(node.value, report=False), node.attr.value)


def number_(low: Lowering, node: cst.Integer | cst.Float | cst.Imaginary) -> t.Term:
    try:
        value: object = ast.literal_eval(node.value)
    except (ValueError, SyntaxError):
        value = ...
    return t.Const(low.at(node), value)


def string(low: Lowering, node: cst.SimpleString) -> t.Term:
    return t.Const(low.at(node), node.evaluated_value)


def concatenated(low: Lowering, node: cst.ConcatenatedString) -> t.Term:
    if not _filled_in(node):
        return t.Const(low.at(node), node.evaluated_value)
    left, right = low.term(node.left), low.term(node.right)
    said = tuple(piece for side in (left, right) for piece in _said(side))
    return t.Opaque(low.at(node), (left, right), said)


def formatted(low: Lowering, node: Any) -> t.Term:
    parts = tuple(_fillings(low, node.parts))
    said: tuple[str, ...] = ()
    if isinstance(node, cst.FormattedString):
        pieces = (part.value for part in node.parts if isinstance(part, cst.FormattedStringText))
        said = tuple(piece for piece in pieces if not set(piece) & set("\\{}"))
    return t.Opaque(low.at(node), parts, said)


def _fillings(low: Lowering, parts: Sequence[Any]) -> Iterator[t.Term]:
    """What an f-string fills in, the expressions inside format specifications too."""
    for part in parts:
        if hasattr(part, "expression"):
            yield low.term(part.expression)
            yield from _fillings(low, part.format_spec or ())


def ellipsis(low: Lowering, node: cst.Ellipsis) -> t.Term:
    return t.Const(low.at(node), ...)


def call(low: Lowering, node: cst.Call, used: bool = True) -> t.Term:
    name = low.imports.resolve(dotted(node.func)) if isinstance(node.func, cst.Name | cst.Attribute) else None
    reported = bool(name) and low.imports.reported(name or "")
    if isinstance(node.func, cst.Attribute):
        owner = node.func.value
        last = owner.attr if isinstance(owner, cst.Attribute) else owner
        if isinstance(last, cst.Name):
            low.uses.setdefault(last.value, set()).add(node.func.attr.value)
    func = low.term(node.func, report=not reported)
    args: list[tuple[str | None, t.Term]] = []
    builtin = node.func.value if isinstance(node.func, cst.Name) else ""
    guard = builtin == "getattr" and len(node.args) == 3  # the third argument is the fallback
    saved = low.role
    low.guard += guard
    if low.role == "name" and builtin in ("isinstance", "issubclass"):
        low.role = "instance"
    for arg in node.args:
        value = low.term(arg.value)
        key = arg.keyword.value if arg.keyword is not None else (arg.star or None)
        if key is not None and arg.keyword is not None:
            low.words[-1].add(key)
        args.append((key, value))
    low.role = saved
    low.guard -= guard
    at = low.at(node)
    if reported:
        ats = tuple(low.at(arg) for arg in node.args)
        low.references.append(
            Reference(at, low.at(node.func), name or "", "call", low.guard > 0, tuple(args), ats, used=used)
        )
    temp = low.fresh()
    low.emit(t.CallLeaf(at, temp, func, tuple(args), used))
    return t.Name(at, temp)


def subscript(low: Lowering, node: cst.Subscript) -> t.Term:
    base = low.term(node.value)
    index: list[t.Term | None] = []
    for element in node.slice:
        if isinstance(element.slice, cst.Index):
            index.append(low.term(element.slice.value))
        elif isinstance(element.slice, cst.Slice):
            for bound in (element.slice.lower, element.slice.upper, element.slice.step):
                if bound is not None:
                    low.term(bound)
            index.append(None)
    return t.Item(low.at(node), base, tuple(index))


def display(low: Lowering, node: cst.List | cst.Tuple | cst.Set) -> t.Term:
    items: list[t.Term] = []
    for element in node.elements:
        value = low.term(element.value)
        items.append(t.Star(low.at(element), value) if isinstance(element, cst.StarredElement) else value)
    return t.Display(low.at(node), type(node).__name__.lower(), tuple(items))


def dict_(low: Lowering, node: cst.Dict) -> t.Term:
    pairs: list[tuple[t.Term | None, t.Term]] = []
    for element in node.elements:
        key = low.term(element.key) if isinstance(element, cst.DictElement) else None
        pairs.append((key, low.term(element.value)))
    return t.Mapping(low.at(node), tuple(pairs))


def starred(low: Lowering, node: cst.StarredElement) -> t.Term:
    return t.Star(low.at(node), low.term(node.value))


def binary(low: Lowering, node: cst.BinaryOperation) -> t.Term:
    left = low.term(node.left)
    return t.Binary(low.at(node), type(node.operator).__name__, left, low.term(node.right))


def unary(low: Lowering, node: cst.UnaryOperation) -> t.Term:
    operand = low.term(node.expression)
    return t.Unary(low.at(node), type(node.operator).__name__, operand)


def comparison(low: Lowering, node: cst.Comparison) -> t.Term:
    left = low.term(node.left)
    parts: list[t.Term] = []
    for target in node.comparisons:
        right = low.term(target.comparator)
        parts.append(t.Compare(low.at(node), _COMPARISONS.get(type(target.operator).__name__, "?"), left, right))
        left = right
    return parts[0] if len(parts) == 1 else t.Boolean(low.at(node), "and", tuple(parts))


def boolean(low: Lowering, node: cst.BooleanOperation) -> t.Term:
    op = "and" if isinstance(node.operator, cst.And) else "or"
    left = low.term(node.left)
    hoisted, right = low.collect(lambda: low.term(node.right))
    if not hoisted.items:
        return t.Boolean(low.at(node), op, (left, right))
    # The right operand calls something: it runs only when the left one lets it.
    temp = t.Name(low.at(node), low.fresh())
    at = temp.at
    low.emit(t.Bind(at, temp, left))
    # As a value the result is one of the operands; as a condition it is both of them.
    result = t.Boolean(at, op, (temp, right)) if low.testing else right
    run = t.Seq((*hoisted.items, t.Bind(at, temp, result)))
    low.emit(t.Branch(at, temp, run if op == "and" else t.Seq(), t.Seq() if op == "and" else run))
    return temp


def choice(low: Lowering, node: cst.IfExp) -> t.Term:
    test = low.test(node.test)
    temp = t.Name(low.at(node), low.fresh())

    def arm(value: cst.BaseExpression) -> t.Seq:
        return low.collect(lambda: low.emit(t.Bind(low.at(value), temp, low.term(value))))[0]

    guard = low.guards(node.test)
    low.guard += guard
    low.emit(t.Branch(temp.at, test, arm(node.body), arm(node.orelse)))
    low.guard -= guard
    return temp


def lambda_(low: Lowering, node: cst.Lambda) -> t.Term:
    return t.Closure(low.at(node), definitions.make_function(low, "<lambda>", node.params, node.body, node))


def comprehension(low: Lowering, node: Any) -> t.Term:
    temp = low.fresh()
    kind = {"DictComp": "dict", "SetComp": "set"}.get(type(node).__name__, "list")
    _gather(low, node, node.for_in, temp, kind)
    return t.Name(low.at(node), temp)


def _gather(low: Lowering, node: Any, clause: cst.CompFor, temp: str, kind: str) -> None:
    source = low.term(clause.iter)
    target = low.term(clause.target)

    def work() -> t.Term:
        for condition in clause.ifs:
            low.term(condition.test)
        if clause.inner_for_in is not None:
            inner = low.fresh()
            _gather(low, node, clause.inner_for_in, inner, kind)
            return t.Star(low.at(clause), t.Name(low.at(clause), inner))
        if isinstance(node, cst.DictComp):
            return t.Display(low.at(node), "tuple", (low.term(node.key), low.term(node.value)))
        return low.term(node.elt)

    body, element = low.collect(work)
    low.emit(t.Gather(low.at(clause), temp, kind, target, source, body, element))


def walrus(low: Lowering, node: cst.NamedExpr) -> t.Term:
    value = low.term(node.value)
    target = low.term(node.target)
    low.emit(t.Bind(low.at(node), target, value))
    return target


def await_(low: Lowering, node: cst.Await) -> t.Term:
    return low.term(node.expression)


def yield_(low: Lowering, node: cst.Yield) -> t.Term:
    low.yields[-1] = True
    value = node.value.item if isinstance(node.value, cst.From) else node.value
    return t.Opaque(low.at(node), (low.term(value),) if value is not None else ())


def _filled_in(node: cst.BaseExpression) -> bool:
    """A part of a concatenated string is an f-string or a t-string."""
    if isinstance(node, cst.ConcatenatedString):
        return _filled_in(node.left) or _filled_in(node.right)
    return not isinstance(node, cst.SimpleString)


def _said(term: t.Term) -> tuple[str, ...]:
    """The letters that certainly stand in a string."""
    if isinstance(term, t.Const):
        return (term.value,) if isinstance(term.value, str) else ()
    return term.said if isinstance(term, t.Opaque) else ()


HANDLERS: dict[type, Callable[[Lowering, Any], t.Term]] = {
    cst.Name: name,
    cst.Attribute: attribute,
    cst.Call: call,
    cst.Subscript: subscript,
    cst.Integer: number_,
    cst.Float: number_,
    cst.Imaginary: number_,
    cst.SimpleString: string,
    cst.ConcatenatedString: concatenated,
    cst.FormattedString: formatted,
    cst.Ellipsis: ellipsis,
    cst.List: display,
    cst.Tuple: display,
    cst.Set: display,
    cst.Dict: dict_,
    cst.StarredElement: starred,
    cst.BinaryOperation: binary,
    cst.UnaryOperation: unary,
    cst.Comparison: comparison,
    cst.BooleanOperation: boolean,
    cst.IfExp: choice,
    cst.Lambda: lambda_,
    cst.ListComp: comprehension,
    cst.SetComp: comprehension,
    cst.GeneratorExp: comprehension,
    cst.DictComp: comprehension,
    cst.NamedExpr: walrus,
    cst.Await: await_,
    cst.Yield: yield_,
}

if hasattr(cst, "TemplatedString"):
    HANDLERS[cst.TemplatedString] = formatted
