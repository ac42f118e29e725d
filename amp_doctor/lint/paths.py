"""Questions about a function's text rather than its runs: who is called where, under which conditions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from amp_doctor.lint.trace import (
    Attr,
    Augment,
    Binary,
    Bind,
    Boolean,
    Branch,
    CallLeaf,
    Compare,
    Const,
    Display,
    Evaluate,
    Exit,
    Gather,
    Item,
    Loop,
    Mapping,
    Name,
    Opaque,
    Seq,
    Star,
    Stmt,
    Term,
    Trace,
    Try,
    Unary,
    With,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Site:
    """One call in a function: the receiver as written, the method, and what encloses it (outermost first)."""

    leaf: CallLeaf
    receiver: str
    method: str
    tests: tuple[str, ...]
    loops: tuple[int, ...]

    def argument(self, position: int = 0) -> str:
        """An argument as written, if it is a name or an attribute."""
        plain = [value for key, value in self.leaf.args if key is None]
        return written(plain[position]) if position < len(plain) else ""


def written(term: Term | None) -> str:
    """A name or attribute chain as written; other terms roughly, so that tests can be searched."""
    match term:
        case None:
            return ""
        case Name(_, name):
            return name
        case Attr(_, base, name):
            return f"{written(base)}.{name}"
        case Const(_, value):
            return repr(value)
        case Binary(_, op, left, right):
            return f"({written(left)} {op} {written(right)})"
        case Compare(_, op, left, right):
            return f"({written(left)} {op} {written(right)})"
        case Boolean(_, op, items):
            return f"({f' {op} '.join(written(item) for item in items)})"
        case Unary(_, op, operand):
            return f"({op} {written(operand)})"
        case Item(_, base, index):
            return f"{written(base)}[{','.join(written(part) for part in index)}]"
        case _:
            return "?"


def _straight(test: Term) -> tuple[Term, bool]:
    """A condition without `not` and `!=`, and whether it is turned round by them."""
    match test:
        case Unary(_, "Not", operand):
            plain, turned = _straight(operand)
            return plain, not turned
        case Compare(at, "!=", left, right):
            return Compare(at, "==", left, right), True
        case _:
            return test, False


@lru_cache(maxsize=256)  # the checks on one function ask again at every event
def calls(body: Seq) -> tuple[Site, ...]:
    """Every call in a body, nested functions left out. Tests show the calls they were made of."""
    temps: dict[str, str] = {}

    def shown(term: Term) -> str:
        text = written(term)
        for temp, call in temps.items():
            if temp in text:
                text = text.replace(temp, call)
        return text

    def walk(node: Trace, tests: tuple[str, ...], loops: tuple[int, ...]) -> Iterator[Site]:
        match node:
            case Seq(items):
                for item in items:
                    yield from walk(item, tests, loops)
            case Stmt(_, inner) | With(_, _, _, inner):
                yield from walk(inner, tests, loops)
            case Branch(_, test, then, other):
                plain, turned = _straight(test)
                text = shown(plain)
                arms = (f"not {text}", text) if turned else (text, f"not {text}")
                yield from walk(then, (*tests, arms[0]), loops)
                yield from walk(other, (*tests, arms[1]), loops)
            case Loop(at, head, _, _, _, inner, other):
                yield from walk(head, tests, (*loops, at))
                yield from walk(inner, tests, (*loops, at))
                yield from walk(other, tests, loops)
            case Gather(at, _, _, _, _, inner, _):
                yield from walk(inner, tests, (*loops, at))
            case Try(_, inner, handlers, other, final):
                for part in (inner, *handlers, other, final):
                    yield from walk(part, tests, loops)
            case Bind(_, Name(_, temp), value) if temp.startswith("%"):
                temps[temp] = shown(value)
            case CallLeaf(_, temp, func, args):
                receiver, _, method = written(func).rpartition(".")
                temps[temp] = f"{written(func)}({','.join(shown(value) for _, value in args)})"
                yield Site(node, receiver, method, tests, loops)
            case _:
                return

    return tuple(walk(body, (), ()))


def loads(node: object, name: str) -> int:
    """How often a variable is read in a trace."""
    match node:
        case Name(_, found):
            return int(found == name)
        case Bind(_, target, value):
            return loads(value, name) + (0 if isinstance(target, Name) else loads(target, name))
        case Seq(items):
            return sum(loads(item, name) for item in items)
        case Stmt(_, body):
            return loads(body, name)
        case Branch(_, test, then, other):
            return loads(test, name) + loads(then, name) + loads(other, name)
        case Loop(_, head, test, _, source, body, other):
            return sum(loads(part, name) for part in (head, test, source, body, other))
        case Gather(_, _, _, _, source, body, element):
            return loads(source, name) + loads(body, name) + loads(element, name)
        case Try(_, body, handlers, other, final):
            return sum(loads(part, name) for part in (body, *handlers, other, final))
        case With(_, context, _, body):
            return loads(context, name) + loads(body, name)
        case CallLeaf(_, _, func, args):
            return loads(func, name) + sum(loads(value, name) for _, value in args)
        case Augment(_, target, _, value):
            return loads(target, name) + loads(value, name)
        case Evaluate(_, value) | Star(_, value) | Exit(_, _, value):
            return loads(value, name)
        case Attr(_, base, _):
            return loads(base, name)
        case Item(_, base, index):
            return loads(base, name) + sum(loads(part, name) for part in index)
        case Display(_, _, parts) | Opaque(_, parts) | Boolean(_, _, parts):
            return sum(loads(part, name) for part in parts)
        case Mapping(_, pairs):
            return sum(loads(key, name) + loads(value, name) for key, value in pairs)
        case Binary(_, _, left, right) | Compare(_, _, left, right):
            return loads(left, name) + loads(right, name)
        case Unary(_, _, operand):
            return loads(operand, name)
        case _:
            function = getattr(node, "function", None)
            return loads(function.body, name) if function is not None else 0


def exits(body: Seq) -> set[str]:
    """The kinds of exit written directly in a body (not in nested loops' own breaks)."""
    found: set[str] = set()
    for item in body.items:
        match item:
            case Stmt(_, inner) | With(_, _, _, inner):
                found |= exits(inner)
            case Exit(_, kind):
                found.add(kind)
            case Branch(_, _, then, other):
                found |= exits(then) | exits(other)
    return found


def picks(loop: Loop) -> bool:
    """True when a `for` does something for some of its elements only: `if i != wanted: continue`, or one whole `if`."""
    names = _named(loop.target)
    for item in loop.body.items:
        parts = item.body.items if isinstance(item, Stmt) else (item,)
        if not parts or not isinstance(parts[-1], Branch):
            continue
        branch = parts[-1]
        alone = len(loop.body.items) == 1 and not branch.other.items
        asked = (*parts[:-1], branch.test)  # calls in the test stand before the branch
        if (alone or exits(branch.then) == {"continue"}) and any(loads(part, name) for part in asked for name in names):
            return True
    return False


def _named(target: Term | None) -> list[str]:
    match target:
        case Name(_, name):
            return [name]
        case Display(_, _, items):
            return [name for item in items for name in _named(item)]
        case _:
            return []


def branches(body: Seq) -> Iterator[Branch]:
    """Every branch in a body, outer before inner."""
    for item in body.items:
        match item:
            case Stmt(_, inner) | With(_, _, _, inner):
                yield from branches(inner)
            case Seq():
                yield from branches(item)
            case Branch(_, _, then, other):
                yield item
                yield from branches(then)
                yield from branches(other)
            case Loop(_, head, _, _, _, inner, other):
                yield from branches(head)
                yield from branches(inner)
                yield from branches(other)
            case Try(_, inner, handlers, other, final):
                for part in (inner, *handlers, other, final):
                    yield from branches(part)
