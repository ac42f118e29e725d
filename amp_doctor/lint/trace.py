"""The small language that syntax is lowered to: terms without nested calls, and the trace tree over them.

Every call, choice and comprehension inside an expression is hoisted into a leaf of its own, in evaluation
order, so a leaf does one thing and a term never forks a path. `at` numbers a syntax node; only
`lint.syntax` can turn the number back into a place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False, repr=False)
class Name:
    """A variable; temporaries start with `%`."""

    at: int
    id: str


@dataclass(slots=True, eq=False, repr=False)
class Const:
    """A literal: None, bool, int, float, complex, str, bytes or Ellipsis."""

    at: int
    value: object


@dataclass(slots=True, eq=False, repr=False)
class Attr:
    """`base.name`."""

    at: int
    base: Term
    name: str


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """`base[index]`; several indices are a tuple index, a slice is None."""

    at: int
    base: Term
    index: tuple[Term | None, ...]


@dataclass(slots=True, eq=False, repr=False)
class Display:
    """A list, tuple or set display; a starred item stands as Star."""

    at: int
    kind: str
    items: tuple[Term, ...]


@dataclass(slots=True, eq=False, repr=False)
class Star:
    """`*value`."""

    at: int
    value: Term


@dataclass(slots=True, eq=False, repr=False)
class Mapping:
    """A dict display; a None key is `**value`."""

    at: int
    pairs: tuple[tuple[Term | None, Term], ...]


@dataclass(slots=True, eq=False, repr=False)
class Binary:
    """`left op right`."""

    at: int
    op: str
    left: Term
    right: Term


@dataclass(slots=True, eq=False, repr=False)
class Unary:
    """`op operand`."""

    at: int
    op: str
    operand: Term


@dataclass(slots=True, eq=False, repr=False)
class Compare:
    """`left op right`; a chain becomes a Boolean of several."""

    at: int
    op: str
    left: Term
    right: Term


@dataclass(slots=True, eq=False, repr=False)
class Boolean:
    """`and` or `or` of several."""

    at: int
    op: str
    items: tuple[Term, ...]


@dataclass(slots=True, eq=False, repr=False)
class Closure:
    """A lambda, or a nested `def` used as a value."""

    at: int
    function: Function


@dataclass(slots=True, eq=False, repr=False)
class Opaque:
    """Anything whose value nobody needs; its parts are still evaluated. `said`: the literal pieces of an f-string."""

    at: int
    parts: tuple[Term, ...]
    said: tuple[str, ...] = ()


Term = Name | Const | Attr | Item | Display | Star | Mapping | Binary | Unary | Compare | Boolean | Closure | Opaque


@dataclass(slots=True, eq=False, repr=False)
class Param:
    """One parameter of a function."""

    name: str
    kind: str  # "positional", "keyword", "*", "**"
    default: Term | None
    annotation: Term | None
    at: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Function:
    """A `def` or lambda: its body is a Trace, its decorators and defaults are terms."""

    at: int
    name: str
    params: tuple[Param, ...]
    body: Seq
    decorators: tuple[Term, ...] = ()
    is_async: bool = False
    is_generator: bool = False
    owner: ClassDef | None = None
    module: int = 0
    words: frozenset[str] = frozenset()
    marks: tuple[Any, ...] = ()  # the values of its decorators, once they were evaluated


@dataclass(slots=True, eq=False, repr=False)
class ClassDef:
    """A class and its methods."""

    at: int
    name: str
    bases: tuple[Term, ...]
    body: Seq
    methods: dict[str, Function] = field(default_factory=dict)
    decorators: tuple[Term, ...] = ()
    module: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Bind:
    """`target = value`."""

    at: int
    target: Term
    value: Term


@dataclass(slots=True, eq=False, repr=False)
class Augment:
    """`target op= value`."""

    at: int
    target: Term
    op: str
    value: Term


@dataclass(slots=True, eq=False, repr=False)
class CallLeaf:
    """`temp = func(args)`; the only leaf that can follow a function."""

    at: int
    temp: str
    func: Term
    args: tuple[tuple[str | None, Term], ...]  # (keyword, "*", "**" or None, value)
    used: bool = True


@dataclass(slots=True, eq=False, repr=False)
class Evaluate:
    """An expression statement that is no call."""

    at: int
    value: Term


@dataclass(slots=True, eq=False, repr=False)
class Define:
    """A `def` is executed: its name is bound."""

    at: int
    function: Function


@dataclass(slots=True, eq=False, repr=False)
class DefineClass:
    """A `class` is executed: its body runs, its name is bound."""

    at: int
    definition: ClassDef


@dataclass(slots=True, eq=False, repr=False)
class Import:
    """Names bound by an import: (local name, canonical dotted name, relative level)."""

    at: int
    names: tuple[tuple[str, str, int], ...]


@dataclass(slots=True, eq=False, repr=False)
class Forget:
    """`del name`, `global`-style rebinding, an `except ... as name`: the name is unknown from here."""

    at: int
    target: Term


@dataclass(slots=True, eq=False, repr=False)
class Exit:
    """`return`, `raise`, `break` or `continue`."""

    at: int
    kind: str
    value: Term | None = None


Leaf = Bind | Augment | CallLeaf | Evaluate | Define | DefineClass | Import | Forget | Exit


@dataclass(slots=True, eq=False, repr=False)
class Seq:
    """One after the other."""

    items: tuple[Trace, ...] = ()


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    """`if test: then else: other`."""

    at: int
    test: Term
    then: Seq
    other: Seq


@dataclass(slots=True, eq=False, repr=False)
class Loop:
    """A `for` (target and source given) or a `while` (test given; `head` holds the calls of the test)."""

    at: int
    head: Seq
    test: Term | None
    target: Term | None
    source: Term | None
    body: Seq
    other: Seq


@dataclass(slots=True, eq=False, repr=False)
class Gather:
    """A comprehension: like a loop, but its turns collect `element` into `temp`."""

    at: int
    temp: str
    kind: str
    target: Term
    source: Term
    body: Seq  # hoisted calls and conditions
    element: Term


@dataclass(slots=True, eq=False, repr=False)
class Try:
    """`try` with all its parts."""

    at: int
    body: Seq
    handlers: tuple[Seq, ...]
    other: Seq
    final: Seq


@dataclass(slots=True, eq=False, repr=False)
class With:
    """One context manager around a body; several nest."""

    at: int
    context: Term
    target: Term | None
    body: Seq


@dataclass(slots=True, eq=False, repr=False)
class Stmt:
    """The trace of one source statement; `at` is the statement itself, `temps` how many temporaries came before it."""

    at: int
    body: Seq
    temps: int = 0


Trace = Leaf | Seq | Branch | Loop | Gather | Try | With | Stmt
