"""Cut a trace down to what can matter, so that the interpreter forks only where mixed precision does.

A leaf is *telling* when it mentions a word of mixed precision or training, or writes a name that a telling leaf
(or a condition or loop around one) reads. Everything else is left out: logging, timing and argument
parsing are most of a real training loop, and their branches would double the paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amp_doctor.lint.trace import (
    Attr,
    Augment,
    Bind,
    Branch,
    CallLeaf,
    Closure,
    Const,
    Define,
    DefineClass,
    Exit,
    Forget,
    Function,
    Gather,
    Import,
    Item,
    Leaf,
    Loop,
    Name,
    Seq,
    Stmt,
    Term,
    Trace,
    Try,
    With,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STRONG = re.compile(
    r"autocast|scaler|^scale$|unscale_|backward|^half$|float16|^amp|_amp$|_amp_|GradScaler|clip_grad|nullcontext|HalfTensor|custom_fwd|custom_bwd|"
    r"^requires_grad|upcast|kbit|^grad$|zero_grad|^isnan$|^isfinite$|^deepcopy$|^state_dict$|^load_state_dict$|^autograd$|^no_grad$|^inference_mode$|^fp16|^bf16|set_default_dtype"
)
"""Words that make a leaf telling on their own."""

ROOT = re.compile(
    r"autocast|scaler|^scale$|unscale_|backward|^half$|float16|GradScaler|clip_grad|HalfTensor|custom_fwd|custom_bwd|set_default_dtype|_amp|^state_dict$|^load_state_dict$|^requires_grad"
)
"""Words that make a function worth running on its own."""

STEP = re.compile(r"^step$|^update$|^optim$|^SGD$|^Adam|^LBFGS$|^RMSprop$|^to$|^float$|^cuda$|^nn$|^compile$|^trace$")
"""Words that make a call telling."""

_memo: dict[str, bool] = {}
_roots: dict[str, bool] = {}


def strong(word: str) -> bool:
    """True for a word that makes a leaf telling on its own."""
    found = _memo.get(word)
    if found is None:
        found = _memo[word] = bool(STRONG.search(word))
    return found


def rooted(words: Iterable[str]) -> bool:
    """True when any word makes a function worth running."""
    for word in words:
        found = _roots.get(word)
        if found is None:
            found = _roots[word] = bool(ROOT.search(word))
        if found:
            return True
    return False


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
    summaries: dict[int, tuple[_Summary, Leaf]] = field(default_factory=dict)
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
                strong(w.lstrip(".")) or w in self.relevant for _, v in leaf.args for w in _names(v)
            ):
                if any(word.lstrip(".") == "partial" for word in _names(leaf.func)):
                    found.add(leaf.temp)
            elif isinstance(leaf, Bind) and any(word in self.relevant or word in found for word in _names(leaf.value)):
                found |= {name.lstrip(".") for name in _written(leaf.target) if name.startswith((".", "%"))}
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
                        names.update(_names(term))
                else:
                    waiting.append((leaf, around))
            flat = waiting
            if len(names) == size:
                return names

    def _flat(self, body: Seq) -> list[tuple[Leaf, tuple[Term, ...]]]:
        found = self.flats.get(id(body))
        if found is None:
            found = self.flats[id(body)] = list(_leaves(body, ()))
        return found

    def _telling(self, leaf: Leaf, names: set[str]) -> bool:
        return self._matters(self._summary(leaf), names)

    def _matters(self, leaf: _Summary, names: set[str]) -> bool:
        if leaf.strong or not leaf.writes.isdisjoint(names) or not leaf.words.isdisjoint(self.relevant):
            return True
        # What a strong leaf made is followed one step on (names marked `!`).
        return self.gentle and any(f"!{name}" in names for name in leaf.reads)

    def _summary(self, leaf: Leaf) -> _Summary:
        found = self.summaries.get(id(leaf))
        if found is None:
            found = self.summaries[id(leaf)] = (_summarise(leaf), leaf)
        return found[0]

    def _speaks(self, term: object) -> bool:
        return any(strong(word.lstrip(".")) or word.lstrip(".") in self.relevant for word in _names(term))

    def _tells(self, body: Seq, names: set[str]) -> bool:
        return any(not isinstance(leaf, Exit) and self._telling(leaf, names) for leaf, _ in _leaves(body, ()))

    def _worth(self, body: Seq, names: set[str]) -> bool:
        """An arm that does something telling, or leaves."""
        return any(isinstance(leaf, Exit) or self._telling(leaf, names) for leaf, _ in _leaves(body, ()))

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
                wanted = self._speaks(context) or bool(set(_names(context)) & names)
                if target is not None and _written(target) & names:
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


@dataclass(slots=True)
class _Summary:
    """What a leaf says, once: its words, whether one of them is strong, what it reads and writes."""

    strong: bool
    words: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]


_ALWAYS = _Summary(True, frozenset(), frozenset(), frozenset())


def _summarise(leaf: Leaf) -> _Summary:
    writes: set[str] = set()
    called: set[str] = set()
    match leaf:
        case Import() | Define() | DefineClass():
            return _ALWAYS
        case Exit(_, kind, value):
            said = set(_names(value)) if kind == "return" else set()
        case CallLeaf(_, temp, func, args):
            called = {word.lstrip(".") for word in _names(func)}
            said = called.union(*(_names(value) for _, value in args))
            writes = {temp}
        case Bind(_, target, value):
            writes = _written(target)
            said = {*_names(value), *(word for word in _names(target) if strong(word.lstrip(".")))}
        case Augment(_, target, _, value):
            writes = _written(target)
            said = {*_names(value), *(word for word in _names(target) if strong(word.lstrip(".")))}
        case Forget(_, target):
            said, writes = set(), _written(target)
        case _:
            said = set(_names(leaf))
    words = frozenset(word.lstrip(".") for word in said)
    loud = any(strong(word) for word in words) or any(STEP.search(word) for word in called)
    return _Summary(loud, words, frozenset(_reads(leaf)), frozenset(writes))


def _only(body: Seq, kind: str) -> bool:
    """Nothing but exits of one kind."""
    found = list(_leaves(body, ()))
    return bool(found) and all(isinstance(leaf, Exit) and leaf.kind == kind for leaf, _ in found)


def _acts(body: Seq) -> bool:
    """More than exits."""
    return any(not isinstance(leaf, Exit) for leaf, _ in _leaves(body, ()))


def _leaves_early(body: Seq) -> bool:
    return any(isinstance(leaf, Exit) and leaf.kind != "raise" for leaf, _ in _leaves(body, ()))


def _definitions(body: Seq) -> bool:
    """Nothing but imports and definitions: both arms can be read without choosing."""
    return all(isinstance(leaf, Import | Define | DefineClass) for leaf, _ in _leaves(body, ()))


def _leaves(node: Trace, around: tuple[Term, ...]) -> Iterator[tuple[Leaf, tuple[Term, ...]]]:
    """Every leaf, with the conditions, sources and contexts around it."""
    match node:
        case Seq(items):
            for item in items:
                yield from _leaves(item, around)
        case Stmt(_, body):
            yield from _leaves(body, around)
        case Branch(_, test, then, other):
            yield from _leaves(then, (*around, test))
            yield from _leaves(other, (*around, test))
        case Loop(_, head, test, target, source, body, other):
            inner = tuple(term for term in (test, target, source) if term is not None)
            yield from _leaves(head, around)
            yield from _leaves(body, (*around, *inner))
            yield from _leaves(other, around)
        case Gather(_, temp, _, target, source, body, element):
            yield from _leaves(body, (*around, target, source))
            yield Bind(node.at, Name(0, temp), element), (*around, target, source)
        case Try(_, body, handlers, other, final):
            for part in (body, *handlers, other, final):
                yield from _leaves(part, around)
        case With(at, context, target, body):
            yield Bind(at, target or Name(0, "%with"), context), around
            yield from _leaves(body, around)
        case _:
            yield node, around


def _names(term: object) -> Iterator[str]:
    """Names and .attributes in a term."""
    match term:
        case Name(_, name):
            yield name
        case Attr(_, base, name):
            yield f".{name}"
            yield from _names(base)
        case Closure(_, function):
            yield from function.words
        case Const(_, value):
            if isinstance(value, str) and len(value) < 20:
                yield value
        case None:
            return
        case tuple():
            for part in term:
                yield from _names(part)
        case _:
            for slot in _SLOTS.get(type(term), ()):
                yield from _names(getattr(term, slot))


def _reads(leaf: Leaf) -> set[str]:
    match leaf:
        case Bind(_, target, value):
            return set(_names(value)) | (set(_names(target)) if not isinstance(target, Name) else set())
        case Augment(_, target, _, value):
            return set(_names(value)) | set(_names(target))
        case CallLeaf(_, _, func, args):
            return set(_names(func)) | {name for _, value in args for name in _names(value)}
        case Exit(_, _, value):
            return set(_names(value))
        case _:
            return set(_names(getattr(leaf, "value", None)))


def _written(target: Term) -> set[str]:
    match target:
        case Name(_, name):
            return {name}
        case Attr(_, _, name):
            return {f".{name}"}
        case Item(_, base, _):
            return _written(base)
        case _:
            return set(_names(target))


def _slots() -> dict[type, tuple[str, ...]]:
    from amp_doctor.lint import trace

    return {
        trace.Item: ("base", "index"),
        trace.Display: ("items",),
        trace.Star: ("value",),
        trace.Mapping: ("pairs",),
        trace.Binary: ("left", "right"),
        trace.Unary: ("operand",),
        trace.Compare: ("left", "right"),
        trace.Boolean: ("items",),
        trace.Opaque: ("parts",),
        trace.Evaluate: ("value",),
    }


_SLOTS = _slots()


def relevant_functions(functions: Iterable[Function]) -> frozenset[str]:
    """The first-party functions that lead to mixed precision, by name: they mention it or call one that does."""
    table: dict[str, set[str]] = {}
    for function in functions:
        table.setdefault(function.name, set()).update(function.words)
    found = {name for name, words in table.items() if rooted(words)}
    while True:
        more = {name for name, words in table.items() if name not in found and words & found}
        if not more:
            return frozenset(found - {"__init__", "<lambda>", "forward", "main"})
        found |= more
