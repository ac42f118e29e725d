"""The interpreter: the machine that `fold` drives over one file, with what all its paths share.

It keeps frames, first-party modules, the budget and the log of events; terms become values in `evaluate`, values are
bound in `binding`, calls are made in `calls`, contexts entered and left in `contexts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.assume import assume, decide
from amp_doctor.lint.fold import fold
from amp_doctor.lint.machine import beliefs, binding, calls, classes, contexts, evaluate, loops
from amp_doctor.lint.objects import (
    BF16,
    HALF,
    NONE,
    TRUE,
    Api,
    Code,
    Object,
    Symbol,
    Tensor,
    Value,
    flat,
    text,
)
from amp_doctor.lint.paths import picks
from amp_doctor.lint.trace import (
    Augment,
    Bind,
    Branch,
    CallLeaf,
    Define,
    DefineClass,
    Evaluate,
    Exit,
    Forget,
    Function,
    Gather,
    Import,
    Loop,
    Name,
    Seq,
    Term,
    With,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.lint.events import Event
    from amp_doctor.lint.project import Module, Project
    from amp_doctor.lint.state import State
    from amp_doctor.lint.typestate import Protocol

MAX_STATES = 24
MAX_DEPTH = 5
BUDGET = 8_000
"""Leaves interpreted per file; past it the rest of the file is left unread (and counted as silence)."""

SHARE = 1_200
"""Leaves interpreted per entry point, so that one entangled function does not cost the others theirs."""


class OutOfBudget(Exception):
    """The file is too entangled to follow; what was found so far stands."""


@dataclass(slots=True)
class Call:
    """One function being followed."""

    function: Function
    frame: int
    site: int = 0


@dataclass(slots=True)
class Interpreter:
    """Shared by all paths of one linted file.

    `frames` numbers calls, `parents` says which frame a frame closes over, `owners` which module a number belongs to.
    `stack` is the functions being followed; `calls` and `loops` are the turns of comprehensions, `guards` the branches
    (place, test, frame) around the present place. `facts` is what checks and rooms remember until the end of the file.
    While `quiet`, nothing is reported.
    """

    module: Module
    project: Project
    report: Callable[[Interpreter, Event, State], None]
    torch_version: tuple[int, ...] | None = None
    frames: dict[tuple[int, int, int], int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    globals: dict[int, dict[str, Value]] = field(default_factory=dict)
    owners: dict[int, Module] = field(default_factory=dict)
    stack: list[Call] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    guards: list[tuple[int, Term, int]] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)  # the values that were tested, as text, beside `guards`
    tested: str = ""
    log: list[Event] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    trainers: list[tuple[Object, State]] = field(default_factory=list)
    spent: int = 0
    limit: int = BUDGET
    silences: int = 0
    quiet: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def emit(self, event: Event, state: State) -> None:
        """Show an event to the checks, with the state as it was before it."""
        if self.quiet:
            return
        self.log.append(event)
        self.report(self, event, state)
        beliefs.learn(self, event, state)

    def frame(self, parent: int, call_at: int, function_at: int) -> int:
        """The frame of one call: the same call site in the same caller always gets the same number."""
        key = (parent, call_at, function_at)
        if key not in self.frames:
            self.frames[key] = 1000 + len(self.frames)
        return self.frames[key]

    @property
    def here(self) -> int:
        """The frame of the function that is being followed."""
        return self.stack[-1].frame if self.stack else self.module.frame

    def lookup(self, name: str, state: State) -> Value | None:
        """The value of a name in the function that is being followed, None when it has none."""
        frame = self.here
        if name[0] == "%":
            return state.temps.get((frame, name))
        if (frame, f"{name}%global") in state.env:
            frame = self.root(frame)
        return self.lookup_from(frame, name, state)

    def lookup_from(self, frame: int | None, name: str, state: State) -> Value | None:
        """A variable as seen from a frame: its own, those it closes over, the globals."""
        while frame is not None:
            value = state.env.get((frame, name))
            if value is not None:
                return value
            table = self.globals.get(frame)
            if table is not None and name in table:
                return table[name]
            frame = self.parents.get(frame)
        return None

    def root(self, frame: int) -> int:
        """The frame of the module a frame is in."""
        while frame in self.parents:
            frame = self.parents[frame]
        return frame

    def leaf(self, leaf: Any, state: State) -> list[State]:
        """Run one leaf; the states it can end in."""
        self.spent += 1
        if self.spent > BUDGET or self.spent > self.limit:
            raise OutOfBudget
        match leaf:
            case CallLeaf():
                return calls.call_leaf(self, leaf, state)
            case Bind(at, target, value):
                binding.bind(self, target, evaluate.evaluate(self, value, state), state, at)
            case Augment():
                binding.augment(self, leaf, state)
            case Evaluate(_, value):
                evaluate.evaluate(self, value, state)
            case Define(_, function):
                self.define(function, state)
            case DefineClass(_, definition):
                return classes.define_class(self, definition, state)
            case Import(_, names):
                self.project.bind_imports(self, names, state)
            case Forget(at, target):
                binding.bind(
                    self, target, Symbol(f"{binding.term_name(target)}@{at}", binding.term_name(target)), state, at
                )
            case Exit(_, kind, value):
                if kind == "return":
                    result = evaluate.evaluate(self, value, state) if value is not None else NONE
                    state.env[(self.here, "%return")] = result
        return [state]

    def define(self, function: Function, state: State) -> None:
        """Bind a function, its decorators and defaults evaluated here."""
        value: Value = Code(function, self.here)
        function.marks = tuple(evaluate.evaluate(self, decorator, state) for decorator in function.decorators)
        if Api("torch.compile") in function.marks:
            state.heap[(text(value), "%compiled")] = TRUE
        for param in function.params:
            if isinstance(param.default, Name) and param.default.id[0] == "%":
                state.env[(self.here, f"{param.default.id[1:]}%default")] = evaluate.evaluate(
                    self, param.default, state
                )
        state.env[(self.here, function.name)] = value

    def split(self, test: Term, state: State) -> tuple[list[State], list[State]]:
        """The states in which a condition holds, and those in which it does not."""
        value = evaluate.evaluate(self, test, state)
        self.tested = text(value)
        truth = decide(value, state.known)
        if truth is not None:
            return ([state], []) if truth else ([], [state])
        yes = [self.with_known(state, known) for known in assume(value, True, state.known)]
        no = [self.with_known(state, known) for known in assume(value, False, state.known)]
        return yes, no

    def with_known(self, state: State, known: dict[str, bool]) -> State:
        """The same path under other assumptions."""
        other = state.copy()
        other.known = dict(known)
        return other

    def guarded(self, node: Branch, arm: bool) -> None:  # noqa: ARG002 - the fold knows one signature
        """The fold goes into an arm of a branch."""
        self.guards.append((node.at, node.test, self.here))
        self.conditions.append(self.tested)

    def unguarded(self) -> None:
        """The fold leaves the arm."""
        self.guards.pop()
        self.conditions.pop()

    def elements(self, loop: Loop, state: State) -> list[Value] | None:
        """What a loop runs over, when it is known one by one."""
        if loop.source is None:
            return None
        source = evaluate.evaluate(self, loop.source, state)
        return loops.known_elements(source)

    def bind_element(self, loop: Loop, state: State, element: Value) -> State:
        """Give a known element to the target of the loop."""
        if loop.target is not None:
            binding.bind(self, loop.target, element, state, loop.at)
        return state

    def advance(self, loop: Loop, state: State, first: bool) -> tuple[list[State], list[State]]:
        """One more turn of a loop over something unknown: the states that enter it, and those that leave.

        A `for` is taken to turn at least once: what nobody loops over trains nobody's model.
        """
        if loop.test is not None:
            return self.split(loop.test, state)
        leaving = [] if first else [state.copy()]
        if loop.source is not None and loop.target is not None:
            source = evaluate.evaluate(self, loop.source, state)
            element = loops.element_of(self, source, loop.at, state, first)
            binding.bind(self, loop.target, element, state, loop.at)
        return [state], leaving

    def begun(self, loop: Loop, states: list[State]) -> dict[int, Protocol]:  # noqa: ARG002 - the fold knows one signature
        """The protocols that paths have when a loop begins."""
        return {id(state.protocol): state.protocol for state in states}

    def turned(self, loop: Loop, states: list[State], begun: dict[int, Protocol]) -> list[State]:
        """What the first turn of a `for` has come to.

        One that picks some of its elements is taken to pick at least one: a path on which the turn did nothing
        is left out where another did something.
        """
        active = [state for state in states if id(state.protocol) not in begun]
        return active if active and len(active) < len(states) and picks(loop) else states

    def gather(self, node: Gather, state: State) -> list[State]:
        """Run a comprehension."""
        return loops.gather(self, node, state)

    def enter(self, node: With, state: State) -> list[State]:
        """Enter the context of a `with`."""
        contexts.enter(self, node.at, evaluate.evaluate(self, node.context, state), node.target, state)
        return [state]

    def leave(self, node: With, state: State) -> list[State]:  # noqa: ARG002 - the fold knows one signature
        """Leave the context of a `with`."""
        contexts.leave(state)
        return [state]

    def settle(self, states: list[State]) -> list[State]:
        """The states that differ, the first of them only when there are too many."""
        if len(states) < 2:
            return states
        kept: list[State] = []
        for state in states:
            if not any(state.same(other) for other in kept):
                kept.append(state)
        if len(kept) > MAX_STATES:
            # The rest of the paths is not followed: what is wrong only there is missed.
            self.silences += 1
            kept = kept[:MAX_STATES]
        return kept

    def copy(self, state: State) -> State:
        """A fork of a path."""
        return state.copy()

    def same(self, one: State, other: State) -> bool:
        """Two paths that nothing can tell apart."""
        return one.same(other)

    def tidy(self, state: State, temps: int) -> None:
        """The temporaries of a statement end with it; those of the statements around it are still needed."""
        if state.temps:
            here = self.here
            state.temps = {
                (frame, name): value
                for (frame, name), value in state.temps.items()
                if frame != here or int(name[1:]) <= temps
            }

    def body(self, function: Function, state: State) -> Seq:
        """What of a function is interpreted: all of it inside an autocast region, else what can matter."""
        if state.regions or self._given_low(function, state):
            return function.body
        module = self.owners.get(function.module, self.module)
        return module.slicer.slice(function)

    def _given_low(self, function: Function, state: State) -> bool:
        """An argument of the call is a half-precision tensor: every operation on it matters."""
        given = (part for param in function.params for part in flat(state.env.get((self.here, param.name))))
        return any(isinstance(part, Tensor) and part.dtype in (HALF, BF16) for part in given)

    def run(self, body: Seq, state: State) -> list[State]:
        """Fold a body that stands on its own; every way out counts as its end."""
        flow = fold(body, [state], self)
        return flow.ends + flow.exits.get("return", []) + flow.exits.get("raise", [])

    def no_grad(self, state: State) -> bool:
        """Gradients are switched off here."""
        return any(mark.startswith("mode:") and not mark.endswith("enable_grad") for mark in state.modes)

    def forwards(self) -> tuple[int, ...]:
        """The calls of `forward` that are being followed, by their frames."""
        return tuple(call.frame for call in self.stack[1:] if call.function.name == "forward")

    def name_of(self, value: Value) -> str:
        """The last written name of a value, for symbols made of it."""
        if isinstance(value, Symbol):
            return value.name
        return text(value)
