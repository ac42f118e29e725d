"""The fold against brute force: every path of a random trace, run one at a time with Python's own control flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from amp_doctor.lint.fold import MAX_TURNS, Flow, fold
from amp_doctor.lint.trace import (
    Branch,
    Display,
    Evaluate,
    Exit,
    Gather,
    Loop,
    Name,
    Seq,
    Stmt,
    Term,
    Trace,
    Try,
    With,
)

MOST_PATHS = 4_000

# What an event makes of each of the automaton's states: one successor, several, or none (the path ends there).
EVENTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "stay": ((0,), (1,), (2,), (3,)),
    "next": ((1,), (2,), (3,), (3,)),
    "turn": ((1,), (2,), (3,), (0,)),
    "zero": ((0,), (0,), (0,), (0,)),
    "swap": ((1,), (0,), (3,), (2,)),
    "fork": ((0, 2), (1, 3), (2,), (3, 0)),
    "gate": ((0,), (), (2,), ()),
}
# What a test is in each state; None is a test that nobody can decide.
TESTS: dict[str, tuple[bool | None, ...]] = {
    "unknown": (None, None, None, None),
    "never": (False, False, False, False),
    "always": (True, True, True, True),
    "odd": (False, True, False, True),
    "perhaps": (True, None, False, None),
}


@dataclass
class Path:
    """The state of one path. It is changed in place, so states that share an object come out wrong."""

    n: int = 0
    open: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        return self.n, self.open


@dataclass
class Automaton:
    """The machine that fold drives here."""

    guards: list[tuple[int, bool]] = field(default_factory=list)
    seen: list[tuple[str, list[tuple[int, bool]]]] = field(default_factory=list)
    tidied: list[tuple[int, int]] = field(default_factory=list)

    def leaf(self, leaf: Any, state: Path) -> list[Path]:
        event = event_of(leaf)
        self.seen.append((event, list(self.guards)))
        return self.after(event, state)

    def after(self, event: str, state: Path) -> list[Path]:
        return [Path(n, state.open) for n in EVENTS[event][state.n]]

    def split(self, test: Term, state: Path) -> tuple[list[Path], list[Path]]:
        truth = truth_of(test, state)
        if truth is None:
            return [state], [self.copy(state)]
        return ([state], []) if truth else ([], [state])

    def elements(self, loop: Loop, _state: Path) -> list[Any] | None:
        return known_elements(loop)

    def bind_element(self, _loop: Loop, state: Path, element: Any) -> Path:
        state.n = EVENTS[element][state.n][0]
        return state

    def advance(self, loop: Loop, state: Path, first: bool) -> tuple[list[Path], list[Path]]:
        if loop.test is not None:
            return self.split(loop.test, state)
        leaving = [] if first else [self.copy(state)]
        state.n = EVENTS[target_of(loop)][state.n][0]
        return [state], leaving

    def begun(self, _loop: Loop, _states: list[Path]) -> None:
        return None

    def turned(self, _loop: Loop, states: list[Path], _begun: None) -> list[Path]:
        return states

    def gather(self, node: Gather, state: Path) -> list[Path]:
        return self.after(node.temp, state)

    def enter(self, node: With, state: Path) -> list[Path]:
        name = name_of(node.context)
        return [Path(each.n, (*each.open, name)) for each in self.after(name, state)]

    def leave(self, node: With, state: Path) -> list[Path]:
        assert state.open[-1] == name_of(node.context)
        return self.after("swap", Path(state.n, state.open[:-1]))

    def guarded(self, node: Branch, arm: bool) -> None:
        self.guards.append((node.at, arm))

    def unguarded(self) -> None:
        self.guards.pop()

    def settle(self, states: list[Path]) -> list[Path]:
        return list({state.key: state for state in states}.values())

    def copy(self, state: Path) -> Path:
        return Path(state.n, state.open)

    def same(self, one: Path, other: Path) -> bool:
        return one.key == other.key

    def tidy(self, state: Path, temps: int) -> None:
        self.tidied.append((temps, state.n))


def event_of(leaf: Any) -> str:
    return (
        leaf.kind
        if isinstance(leaf, Exit) and leaf.kind in EVENTS
        else "stay"
        if isinstance(leaf, Exit)
        else name_of(leaf.value)
    )


def name_of(term: Term | None) -> str:
    assert isinstance(term, Name)
    return term.id


def truth_of(test: Term, state: Path) -> bool | None:
    return TESTS[name_of(test)][state.n]


def known_elements(loop: Loop) -> list[str] | None:
    return [name_of(item) for item in loop.source.items] if isinstance(loop.source, Display) else None


def target_of(loop: Loop) -> str:
    return name_of(loop.target)


# --- brute force ---------------------------------------------------------------------------------


class Leaving(Exception):
    """A return, raise, break or continue on its way to where it lands."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Dead(Exception):
    """This path ends here: no successor, or it goes in a circle that a shorter path leaves out."""


class Walk:
    """One path: at each fork it takes the arm that `script` says, and the first one beyond it."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.taken: list[tuple[int, int]] = []  # arm taken, number of arms
        self.state = Path()
        self.dead = False

    def choose(self, arms: int) -> int:
        turn = len(self.taken)
        arm = self.script[turn] if turn < len(self.script) else 0
        self.taken.append((arm, arms))
        return arm

    def die(self) -> None:
        self.dead = True
        raise Dead

    def event(self, name: str) -> None:
        if self.dead:  # a `finally` on the way out of a dead path does nothing either
            raise Dead
        successors = EVENTS[name][self.state.n]
        if not successors:
            self.die()
        self.state.n = successors[self.choose(len(successors))]

    def test(self, term: Term) -> bool:
        truth = truth_of(term, self.state)
        return bool(self.choose(2)) if truth is None else truth

    def run(self, trace: Trace) -> None:
        if self.dead:
            raise Dead
        match trace:
            case Seq(items):
                for item in items:
                    self.run(item)
            case Stmt(_, body):
                self.run(body)
            case Branch(_, test, then, other):
                self.run(then if self.test(test) else other)
            case Loop():
                self.loop(trace)
            case Try():
                self.attempt(trace)
            case With(_, context):
                self.event(name_of(context))
                self.state.open = (*self.state.open, name_of(context))
                try:
                    self.run(trace.body)
                finally:
                    self.state.open = self.state.open[:-1]
                    self.event("swap")
            case Gather(_, temp):
                self.event(temp)
            case Exit(_, kind):
                raise Leaving(kind)
            case _:
                self.event(event_of(trace))

    def loop(self, loop: Loop) -> None:
        try:
            self.turns(loop)
        except Leaving as leaving:
            if leaving.kind != "break":
                raise
        else:
            self.run(loop.other)

    def turns(self, loop: Loop) -> None:
        known = known_elements(loop)
        if known is not None:
            for element in known:
                self.event(element)
                self.turn(loop)
            return
        been: set[object] = set()
        while True:
            self.run(loop.head)
            if loop.test is not None:
                if not self.test(loop.test):
                    return
            elif been and self.choose(2):
                return
            if self.state.key in been:
                self.die()
            been.add(self.state.key)
            if loop.test is None:
                self.event(target_of(loop))
            self.turn(loop)

    def turn(self, loop: Loop) -> None:
        try:
            self.run(loop.body)
        except Leaving as leaving:
            # A `break` lands outside the loop; the `else` of a loop is not reached from here.
            if leaving.kind != "continue":
                raise

    def attempt(self, node: Try) -> None:
        try:
            if self.caught(node):
                return
            self.run(node.other)
        finally:
            self.run(node.final)

    def caught(self, node: Try) -> bool:
        """Run the body and, when something was raised, one of the handlers."""
        if not node.handlers:
            self.run(node.body)
            return False
        try:
            if self.choose(2):
                raise Leaving("raise")  # the first thing in the body fails before it has any effect
            self.run(node.body)
            if self.choose(2):
                raise Leaving("raise")  # the last thing fails after its effect
        except Leaving as leaving:
            if leaving.kind != "raise":
                raise
            self.run(node.handlers[self.choose(len(node.handlers))])
            return True
        return False


Outcome = tuple[str, int, tuple[str, ...]]


def enumerated(trace: Trace) -> set[Outcome] | None:
    """Where each path ends, or None when there are too many of them."""
    found: set[Outcome] = set()
    script: list[int] = []
    for _ in range(MOST_PATHS):
        walk = Walk(script)
        try:
            walk.run(trace)
            found.add(("", *walk.state.key))
        except Leaving as leaving:
            found.add((leaving.kind, *walk.state.key))
        except Dead:
            pass
        script = next_script(walk.taken)
        if not script:
            return found
    return None


def next_script(taken: list[tuple[int, int]]) -> list[int]:
    """The next path in order: the last fork that has an arm left takes it; [] after the last path."""
    for place in range(len(taken) - 1, -1, -1):
        arm, arms = taken[place]
        if arm + 1 < arms:
            return [*(earlier for earlier, _ in taken[:place]), arm + 1]
    return []


def folded(trace: Trace) -> set[Outcome]:
    machine = Automaton()
    flow = fold(trace, [Path()], machine)
    assert machine.guards == []
    states = [*flow.ends, *(state for leaving in flow.exits.values() for state in leaving)]
    assert len({id(state) for state in states}) == len(states), "two paths share one state"
    return outcomes(flow)


def outcomes(flow: Flow) -> set[Outcome]:
    ends = {("", *state.key) for state in flow.ends}
    return ends | {(kind, *state.key) for kind, states in flow.exits.items() for state in states}


# --- random traces -------------------------------------------------------------------------------

NUMBER = st.just(0)
EVENT = st.sampled_from(list(EVENTS)).map(lambda name: Name(0, name))
SURE = st.sampled_from([name for name, table in EVENTS.items() if all(len(after) == 1 for after in table)]).map(
    lambda name: Name(0, name)
)
TEST = st.sampled_from(list(TESTS)).map(lambda name: Name(0, name))
LEAF = st.builds(Evaluate, NUMBER, EVENT) | st.builds(
    Gather, NUMBER, st.sampled_from(list(EVENTS)), st.just("list"), EVENT, EVENT, st.just(Seq()), EVENT
)
EXIT = st.builds(Exit, NUMBER, st.sampled_from(["break", "continue", "return", "raise"]))


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    body = st.lists(inner, max_size=3).map(lambda items: Seq(tuple(items)))
    rest = st.just(Seq()) | body
    head = st.lists(LEAF, max_size=1).map(lambda items: Seq(tuple(items)))
    known = st.lists(SURE, max_size=3).map(lambda items: Display(0, "list", tuple(items)))
    return st.one_of(
        body,
        st.builds(Stmt, NUMBER, body),
        st.builds(Branch, NUMBER, TEST, body, rest),
        st.builds(Loop, NUMBER, head, TEST, st.none(), st.none(), body, rest),
        st.builds(Loop, NUMBER, st.just(Seq()), st.none(), SURE, EVENT, body, rest),
        st.builds(Loop, NUMBER, st.just(Seq()), st.none(), SURE, known, body, rest),
        st.builds(Try, NUMBER, body, st.lists(body, max_size=2).map(tuple), rest, rest),
        st.builds(With, NUMBER, EVENT, st.none(), body),
    )


TRACE = st.recursive(LEAF | EXIT, compound, max_leaves=12)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(TRACE)
def test_fold_finds_the_ends_of_all_paths_and_no_others(trace: Trace) -> None:
    expected = enumerated(trace)
    assume(expected is not None)
    assert folded(trace) == expected


# --- single cases --------------------------------------------------------------------------------


def do(*events: str) -> Seq:
    return Seq(
        tuple(Exit(0, e) if e in ("break", "continue", "return", "raise") else Evaluate(0, Name(0, e)) for e in events)
    )


def seq(*parts: Trace) -> Seq:
    return Seq(parts)


def when(test: str, then: Seq, other: Seq | None = None, at: int = 0) -> Branch:
    return Branch(at, Name(0, test), then, other or Seq())


def each(body: Trace, other: Seq | None = None, target: str = "stay") -> Loop:
    return Loop(0, Seq(), None, Name(0, target), Name(0, "unknown"), seq(body), other or Seq())


def over(elements: list[str], body: Trace, other: Seq | None = None) -> Loop:
    items = tuple(Name(0, element) for element in elements)
    return Loop(0, Seq(), None, Name(0, "stay"), Display(0, "list", items), seq(body), other or Seq())


def loop(test: str, body: Seq, other: Seq | None = None, head: Seq | None = None) -> Loop:
    return Loop(0, head or Seq(), Name(0, test), None, None, body, other or Seq())


def attempt(body: Seq, *handlers: Seq, other: Seq | None = None, final: Seq | None = None) -> Try:
    return Try(0, body, handlers, other or Seq(), final or Seq())


def within(body: Trace, context: str = "stay") -> With:
    return With(0, Name(0, context), None, seq(body))


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        pytest.param(do("next", "next"), {("", 2)}, id="a sequence threads the state"),
        pytest.param(do("next", "return", "next"), {("return", 1)}, id="nothing runs after return"),
        pytest.param(do("fork", "next"), {("", 1), ("", 3)}, id="a leaf may fork"),
        pytest.param(do("next", "gate", "next"), set(), id="a leaf may end the path"),
        pytest.param(when("unknown", do("next")), {("", 0), ("", 1)}, id="an unknown test takes both arms"),
        pytest.param(when("always", do("next"), do("return")), {("", 1)}, id="a known test takes one"),
        pytest.param(
            seq(when("unknown", do("next")), when("odd", do("turn"), do("return"))),
            {("", 2), ("return", 0)},
            id="a test that the path has settled splits no further",
        ),
        pytest.param(loop("unknown", do("turn")), {("", n) for n in range(4)}, id="while: any number of turns"),
        pytest.param(loop("always", do("turn")), set(), id="while True without a break never ends"),
        pytest.param(
            loop("always", seq(do("turn"), when("unknown", do("break"))), do("zero")),
            {("", n) for n in range(4)},
            id="while True ends where it breaks, past its else",
        ),
        pytest.param(loop("never", do("turn"), do("next")), {("", 1)}, id="while False runs its else"),
        pytest.param(loop("odd", do("stay"), head=do("next")), {("", 2)}, id="the head of a while runs each time"),
        pytest.param(each(do("next")), {("", 1), ("", 2), ("", 3)}, id="for: at least one turn"),
        pytest.param(each(do("stay")), {("", 0)}, id="a for that changes nothing is left"),
        pytest.param(each(do("zero"), do("next")), {("", 1)}, id="a for that changes nothing runs its else"),
        pytest.param(each(do("stay"), target="next"), {("", 1), ("", 2), ("", 3)}, id="the target is bound each turn"),
        pytest.param(
            each(seq(each(do("stay")), do("turn"))), {("", n) for n in range(4)}, id="an idle loop in a busy one"
        ),
        pytest.param(
            each(seq(when("unknown", do("continue")), do("turn", "break"))),
            {("", 0), ("", 1)},
            id="continue starts the next turn, break ends the loop",
        ),
        pytest.param(each(do("break"), do("next")), {("", 0)}, id="break skips the else"),
        pytest.param(each(seq(each(do("next", "break")), do("next", "return"))), {("return", 2)}, id="inner break"),
        pytest.param(over(["next", "next"], do("stay")), {("", 2)}, id="known elements: exactly their turns"),
        pytest.param(over([], do("return"), do("next")), {("", 1)}, id="no elements: only the else"),
        pytest.param(
            over(["next", "next", "next"], when("odd", do("continue"), do("break"))), {("", 2)}, id="known and break"
        ),
        pytest.param(attempt(do("next"), do("turn")), {("", 1), ("", 2)}, id="a handler before and after the body"),
        pytest.param(
            attempt(do("next", "raise"), do("return")), {("return", 0), ("return", 1)}, id="a raise is caught"
        ),
        pytest.param(attempt(do("raise"), final=do("next")), {("raise", 1)}, id="finally without a handler"),
        pytest.param(attempt(do("return"), final=do("next")), {("return", 1)}, id="finally on the way out"),
        pytest.param(attempt(do("return"), final=do("break")), {("break", 0)}, id="finally overrides the way out"),
        pytest.param(
            attempt(do("stay"), do("raise"), final=do("next")), {("", 1), ("raise", 1)}, id="finally after a handler"
        ),
        pytest.param(
            attempt(do("stay"), do("turn"), other=do("next", "next")), {("", 2), ("", 1)}, id="else after the body only"
        ),
        pytest.param(
            attempt(do("stay"), do("next"), other=do("raise")), {("", 1), ("raise", 0)}, id="else is not guarded"
        ),
        pytest.param(
            attempt(do("stay"), do("next"), do("turn", "turn")), {("", 0), ("", 1), ("", 2)}, id="any handler"
        ),
        pytest.param(within(do("return")), {("return", 1)}, id="with: left on return"),
        pytest.param(each(within(do("break"))), {("", 1)}, id="with: left on break"),
        pytest.param(within(within(do("raise"))), {("raise", 0)}, id="with: both are left"),
        pytest.param(within(do("stay"), "gate"), {("", 1)}, id="with: entered and left"),
    ],
)
def test_single_trace(trace: Trace, expected: set[tuple[str, int]]) -> None:
    assert {(kind, n) for kind, n, _ in folded(trace)} == expected
    assert enumerated(trace) == folded(trace)


def test_with_is_open_inside_and_closed_outside() -> None:
    assert folded(within(do("return"))) == {("return", 1, ())}


def test_guards_name_the_branches_around_a_leaf() -> None:
    machine = Automaton()
    trace = when("unknown", seq(do("next"), when("unknown", Seq(), do("turn"), at=7)), do("zero"), at=5)
    fold(trace, [Path()], machine)
    assert machine.seen == [("next", [(5, True)]), ("turn", [(5, True), (7, False)]), ("zero", [(5, False)])]
    assert machine.guards == []


def test_states_are_tidied_at_the_end_of_a_statement() -> None:
    machine = Automaton()
    fold(seq(Stmt(1, do("next"), 4), Stmt(2, do("fork"), 5), Stmt(3, do("return"), 6)), [Path()], machine)
    assert machine.tidied == [(4, 1), (5, 1), (5, 3), (6, 1), (6, 3)]


def test_an_endless_supply_of_states_ends_the_loop() -> None:
    class Counter(Automaton):
        def leaf(self, _leaf: Any, state: Path) -> list[Path]:
            return [Path(state.n + 1)]

        def advance(self, _loop: Loop, state: Path, first: bool) -> tuple[list[Path], list[Path]]:
            return [state], [] if first else [self.copy(state)]

    flow = fold(each(do("next")), [Path()], Counter())
    assert [state.n for state in flow.ends] == list(range(1, MAX_TURNS))
