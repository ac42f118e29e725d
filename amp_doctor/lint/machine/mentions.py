"""What a trace mentions: its leaves with what stands around them, and the names that each of them reads and writes.

An attribute stands with its dot (`.grad`), a temporary with its `%`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.lint import trace as t
from amp_doctor.lint.machine import telling

if TYPE_CHECKING:
    from collections.abc import Iterator


# Where the other terms, which have no name of their own, keep theirs.
_PARTS: dict[type, tuple[str, ...]] = {
    t.Item: ("base", "index"),
    t.Display: ("items",),
    t.Star: ("value",),
    t.Mapping: ("pairs",),
    t.Binary: ("left", "right"),
    t.Unary: ("operand",),
    t.Compare: ("left", "right"),
    t.Boolean: ("items",),
    t.Opaque: ("parts",),
    t.Evaluate: ("value",),
}


@dataclass(slots=True)
class Summary:
    """What a leaf says, once: its words, whether one of them is strong, what it reads and writes."""

    strong: bool
    words: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]


_ALWAYS = Summary(True, frozenset(), frozenset(), frozenset())


def summarise(leaf: t.Leaf) -> Summary:
    """Imports and definitions always tell: what they bind may matter anywhere."""
    writes: set[str] = set()
    called: set[str] = set()
    match leaf:
        case t.Import() | t.Define() | t.DefineClass():
            return _ALWAYS
        case t.Exit(_, kind, value):
            said = set(mentioned(value)) if kind == "return" else set()
        case t.CallLeaf(_, temp, func, args):
            called = {word.lstrip(".") for word in mentioned(func)}
            said = called.union(*(mentioned(value) for _, value in args))
            writes = {temp}
        case t.Bind(_, target, value) | t.Augment(_, target, _, value):
            writes = written(target)
            said = {*mentioned(value), *(word for word in mentioned(target) if telling.strong(word.lstrip(".")))}
        case t.Forget(_, target):
            said, writes = set(), written(target)
        case _:
            said = set(mentioned(leaf))
    words = frozenset(word.lstrip(".") for word in said)
    loud = any(telling.strong(word) for word in words) or any(telling.STEP.search(word) for word in called)
    return Summary(loud, words, frozenset(read(leaf)), frozenset(writes))


def leaves(node: t.Trace, around: tuple[t.Term, ...] = ()) -> Iterator[tuple[t.Leaf, tuple[t.Term, ...]]]:
    """Every leaf, with the conditions, sources and contexts around it."""
    match node:
        case t.Seq(items):
            for item in items:
                yield from leaves(item, around)
        case t.Stmt(_, body):
            yield from leaves(body, around)
        case t.Branch(_, test, then, other):
            yield from leaves(then, (*around, test))
            yield from leaves(other, (*around, test))
        case t.Loop(_, head, test, target, source, body, other):
            inner = tuple(term for term in (test, target, source) if term is not None)
            yield from leaves(head, around)
            yield from leaves(body, (*around, *inner))
            yield from leaves(other, around)
        case t.Gather(_, temp, _, target, source, body, element):
            yield from leaves(body, (*around, target, source))
            yield t.Bind(node.at, t.Name(0, temp), element), (*around, target, source)
        case t.Try(_, body, handlers, other, final):
            for part in (body, *handlers, other, final):
                yield from leaves(part, around)
        case t.With(at, context, target, body):
            yield t.Bind(at, target or t.Name(0, "%with"), context), around
            yield from leaves(body, around)
        case _:
            yield node, around


def mentioned(term: object) -> Iterator[str]:
    """Names and .attributes in a term."""
    match term:
        case t.Name(_, name):
            yield name
        case t.Attr(_, base, name):
            yield f".{name}"
            yield from mentioned(base)
        case t.Closure(_, function):
            yield from function.words
        case t.Const(_, value):
            if isinstance(value, str) and len(value) < 20:
                yield value
        case None:
            return
        case tuple():
            for part in term:
                yield from mentioned(part)
        case _:
            for part in _PARTS.get(type(term), ()):
                yield from mentioned(getattr(term, part))


def read(leaf: t.Leaf) -> set[str]:
    """The names that a leaf reads; those inside what it writes to are among them."""
    match leaf:
        case t.Bind(_, target, value):
            return set(mentioned(value)) | (set(mentioned(target)) if not isinstance(target, t.Name) else set())
        case t.Augment(_, target, _, value):
            return set(mentioned(value)) | set(mentioned(target))
        case t.CallLeaf(_, _, func, args):
            return set(mentioned(func)) | {name for _, value in args for name in mentioned(value)}
        case t.Exit(_, _, value):
            return set(mentioned(value))
        case _:
            return set(mentioned(getattr(leaf, "value", None)))


def written(target: t.Term) -> set[str]:
    """The names that an assignment to the target writes; for `a[0]` that is `a`."""
    match target:
        case t.Name(_, name):
            return {name}
        case t.Attr(_, _, name):
            return {f".{name}"}
        case t.Item(_, base, _):
            return written(base)
        case _:
            return set(mentioned(target))
