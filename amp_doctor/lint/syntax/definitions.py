"""Functions, lambdas and classes -> definitions: parameters, decorators, and bodies lowered in a scope of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from amp_doctor.lint import trace as t
from amp_doctor.lint.syntax.names import Reference, dotted, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.lint.syntax.lower import Lowering


def function(low: Lowering, node: cst.FunctionDef) -> None:
    """A `def` statement."""
    decorators = tuple(_decorator(low, item.decorator) for item in node.decorators)
    if node.returns is not None:
        low.quiet(node.returns.annotation)
    function = make_function(low, node.name.value, node.params, node.body, node)
    function.decorators = decorators
    function.words |= {word for item in node.decorators for word in words_of(item.decorator)}
    function.is_async = node.asynchronous is not None
    low.emit(t.Define(function.at, function))


def class_(low: Lowering, node: cst.ClassDef) -> None:
    """A `class` statement."""
    decorators = tuple(_decorator(low, item.decorator) for item in node.decorators)
    bases = tuple(low.term(arg.value) for arg in node.bases)
    definition = t.ClassDef(low.at(node), node.name.value, bases, t.Seq(), {}, decorators, low.number)
    low.owner.append(definition)
    definition.body = low.block(node.body)
    low.owner.pop()
    for function in low.functions:
        if function.owner is definition:
            definition.methods.setdefault(function.name, function)
    low.classes.append(definition)
    low.emit(t.DefineClass(definition.at, definition))


def make_function(low: Lowering, name: str, params: cst.Parameters, body: Any, node: cst.CSTNode) -> t.Function:
    """A function of its parameters and body; the body of a lambda is one expression."""
    lowered = _parameters(low, params)
    low.words.append(set())
    low.yields.append(False)
    owner = low.owner[-1]
    low.owner.append(None)
    if isinstance(body, cst.BaseExpression):

        def returned() -> None:
            low.emit(t.Exit(low.at(body), "return", low.term(body)))

        seq, _ = low.collect(returned)
    else:
        seq = low.block(body)
    low.owner.pop()
    words = low.words.pop()
    low.words[-1] |= words
    function = t.Function(
        low.at(node),
        name,
        lowered,
        seq,
        is_generator=low.yields.pop(),
        owner=owner,
        module=low.number,
        words=frozenset(words),
    )
    low.functions.append(function)
    return function


def _parameters(low: Lowering, params: cst.Parameters) -> tuple[t.Param, ...]:
    """The parameters in order, their defaults evaluated here."""
    out: list[t.Param] = []

    def add(items: Sequence[cst.Param], kind: str) -> None:
        for item in items:
            default = low.term(item.default) if item.default is not None else None
            note = item.annotation
            annotation = low.quiet(note.annotation) if isinstance(note, cst.Annotation) else None
            out.append(t.Param(item.name.value, kind, default, annotation, low.at(item)))

    add(params.posonly_params, "positional")
    add(params.params, "positional")
    if isinstance(params.star_arg, cst.Param):
        add([params.star_arg], "*")
    add(params.kwonly_params, "keyword")
    if params.star_kwarg is not None:
        add([params.star_kwarg], "**")
    return tuple(out)


def _decorator(low: Lowering, node: cst.BaseExpression) -> t.Term:
    """A decorator; one that is reported is a reference of its own kind."""
    if isinstance(node, cst.Call):
        return low.term(node)
    name = low.imports.resolve(dotted(node))
    if name and low.imports.reported(name):
        term = low.term(node, report=False)
        low.references.append(Reference(term.at, term.at, name, "decorator", low.guard > 0))
        return term
    return low.term(node)
