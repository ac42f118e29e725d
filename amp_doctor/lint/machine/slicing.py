"""Cut a trace down to what can matter, so that the interpreter forks only where mixed precision does.

A leaf is *telling* when it mentions a word of mixed precision or training, or writes a name that a telling leaf
(or a condition or loop around one) reads. Everything else is left out: logging, timing and argument
parsing are most of a real training loop, and their branches would double the paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amp_doctor.lint.machine import telling
from amp_doctor.lint.machine.mentions import Summary, leaves, mentioned, summarise, written
from amp_doctor.lint.trace import (
    Bind,
    Branch,
    CallLeaf,
    Define,
    DefineClass,
    Exit,
    Function,
    Gather,
    Import,
    Leaf,
    Loop,
    Seq,
    Stmt,
    Term,
    Trace,
    Try,
    With,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class Slicer:
    """The names one file cares about: attributes and first-party functions, over all its functions.

    `gentle` cuts only what forks (branches, loops and tries without a telling leaf) and keeps straight lines.
    """

    relevant: frozenset[str] = frozenset()
    gentle: bool = True
    attributes: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    cache: dict[int, Seq] = field(default_factory=dict)
    # With the leaf itself: some are made on the way, and the number of one that is gone is given to another.
    summaries: dict[int, tuple[Summary, Leaf]] = field(default_factory=dict)
    flats: dict[int, list[tuple[Leaf, tuple[Term, ...]]]] = field(default_factory=dict)

    def slice(self, function: Function) -> Seq:
        """The body of a function without what cannot matter."""
        found = self.cache.get(id(function))
        if found is None:
            found = self.cache[id(function)] = self._cut(function.body, self._interest(function.body))
        return found

    def prepare(self, functions: Iterable[Function], body: Seq) -> None:
        """Collect the attributes and globals that telling leaves read, over the whole file."""
        bodies = [function.body for function in functions]
        for _ in range(3):
            before = len(self.attributes), len(self.globals)
            for part in (*bodies, body):
                names = self._interest(part)
                self.globals |= {name for name in names if not name.startswith((".", "%", "!"))}
                self.attributes |= {name for name in names if name.startswith(".")}
                self.relevant |= self._carriers(part)
            if before == (len(self.attributes), len(self.globals)):
                break

    def _carriers(self, body: Seq) -> frozenset[str]:
        """Attributes (and the temporaries on the way) that hold something telling: calling them is telling too."""
        found: set[str] = set()
        for leaf, _ in self._flat(body):
            if isinstance(leaf, CallLeaf) and any(
                telling.strong(w.lstrip(".")) or w in self.relevant for _, v in leaf.args for w in mentioned(v)
            ):
                if any(word.lstrip(".") == "partial" for word in mentioned(leaf.func)):
                    found.add(leaf.temp)
            elif isinstance(leaf, Bind) and any(
                word in self.relevant or word in found for word in mentioned(leaf.value)
            ):
                found |= {name.lstrip(".") for name in written(leaf.target) if name.startswith((".", "%"))}
        return frozenset(found)

    def _interest(self, body: Seq) -> set[str]:
        names: set[str] = set(self.attributes)
        flat = [(self._summary(leaf), around) for leaf, around in self._flat(body)]
        while True:
            size = len(names)
            waiting = []
            for leaf, around in flat:
                if self._matters(leaf, names):
                    names |= leaf.reads
                    if self.gentle and (
                        leaf.strong or any(name[:1] == "%" and f"!{name}" in names for name in leaf.reads)
                    ):
                        names |= {f"!{name}" for name in leaf.writes}
                    for term in around:
                        names.update(mentioned(term))
                else:
                    waiting.append((leaf, around))
            flat = waiting
            if len(names) == size:
                return names

    def _flat(self, body: Seq) -> list[tuple[Leaf, tuple[Term, ...]]]:
        found = self.flats.get(id(body))
        if found is None:
            found = self.flats[id(body)] = list(leaves(body))
        return found

    def _telling(self, leaf: Leaf, names: set[str]) -> bool:
        return self._matters(self._summary(leaf), names)

    def _matters(self, leaf: Summary, names: set[str]) -> bool:
        if leaf.strong or not leaf.writes.isdisjoint(names) or not leaf.words.isdisjoint(self.relevant):
            return True
        # What a strong leaf made is followed one step on (names marked `!`).
        return self.gentle and any(f"!{name}" in names for name in leaf.reads)

    def _summary(self, leaf: Leaf) -> Summary:
        found = self.summaries.get(id(leaf))
        if found is None:
            found = self.summaries[id(leaf)] = (summarise(leaf), leaf)
        return found[0]

    def _speaks(self, term: object) -> bool:
        return any(telling.strong(word.lstrip(".")) or word.lstrip(".") in self.relevant for word in mentioned(term))

    def _tells(self, body: Seq, names: set[str]) -> bool:
        return any(not isinstance(leaf, Exit) and self._telling(leaf, names) for leaf, _ in leaves(body))

    def _worth(self, body: Seq, names: set[str]) -> bool:
        """An arm that does something telling, or leaves."""
        return any(isinstance(leaf, Exit) or self._telling(leaf, names) for leaf, _ in leaves(body))

    def _cut(self, body: Seq, names: set[str]) -> Seq:
        kept: list[Trace] = []
        for item in body.items:
            cut = self._part(item, names)
            if cut is not None:
                kept.append(cut)
        return Seq(tuple(kept))

    def _part(self, item: Trace, names: set[str]) -> Trace | None:
        match item:
            case Stmt(at, body, temps):
                inner = self._cut(body, names)
                return Stmt(at, inner, temps) if inner.items else None
            case Seq():
                inner = self._cut(item, names)
                return inner if inner.items else None
            case Branch(at, test, then, other):
                yes, no = self._cut(then, names), self._cut(other, names)
                if not self._worth(yes, names) and not self._worth(no, names):
                    return None
                if _only(yes, "raise") and (not no.items or not yes.items):
                    return no if no.items else None
                if _definitions(yes) and _definitions(no):
                    return Seq((*yes.items, *no.items))
                return Branch(at, test, yes, no)
            case Loop(at, head, test, target, source, body, other):
                inner = self._cut(body, names)
                rest = self._cut(other, names)
                if not self._tells(inner, names) and not self._tells(rest, names):
                    return None
                return Loop(at, self._cut(head, names), test, target, source, inner, rest)
            case Try(at, body, handlers, other, final):
                inner, rest, last = (self._cut(part, names) for part in (body, other, final))
                caught = tuple(self._cut(part, names) for part in handlers)
                if not any(part.items for part in (inner, *caught, rest, last)):
                    return None
                if not any(self._tells(part, names) for part in caught) and not any(
                    _leaves_early(part) for part in caught
                ):
                    return Seq((*inner.items, *rest.items, *last.items))
                return Try(at, inner, caught, rest, last)
            case With(at, context, target, body):
                inner = self._cut(body, names)
                wanted = self._speaks(context) or bool(set(mentioned(context)) & names)
                if target is not None and written(target) & names:
                    wanted = True
                if not inner.items and not wanted:
                    return None
                return With(at, context, target, inner)
            case Gather(_, temp, _, _, source, body, element):
                inner = self._cut(body, names)
                wanted = temp in names or _acts(inner) or self._speaks(element) or self._speaks(source)
                return item if wanted else None
            case Exit():
                return item
            case _:
                return item if self.gentle or self._telling(item, names) else None


def _only(body: Seq, kind: str) -> bool:
    """Nothing but exits of one kind."""
    found = list(leaves(body))
    return bool(found) and all(isinstance(leaf, Exit) and leaf.kind == kind for leaf, _ in found)


def _acts(body: Seq) -> bool:
    """More than exits."""
    return any(not isinstance(leaf, Exit) for leaf, _ in leaves(body))


def _leaves_early(body: Seq) -> bool:
    return any(isinstance(leaf, Exit) and leaf.kind != "raise" for leaf, _ in leaves(body))


def _definitions(body: Seq) -> bool:
    """Nothing but imports and definitions: both arms can be read without choosing."""
    return all(isinstance(leaf, Import | Define | DefineClass) for leaf, _ in leaves(body))
