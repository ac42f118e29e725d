"""Fold a set of states over a trace: every path at once, without listing paths.

A sequence threads the set, a branch unites its arms, a loop repeats until no new state appears, `with`
brackets its body on every way out, and return, break, continue and raise set states aside for where they
land. What a leaf means is the machine's business; `tests/test_fold.py` checks the fold against brute
enumeration of paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from amp_doctor.lint.trace import Branch, Exit, Gather, Loop, Seq, Stmt, Term, Trace, Try, With

S = TypeVar("S")

MAX_TURNS = 6
"""Rounds after which a loop is left although new states still appear (they cannot for finite machines)."""


class Machine(Protocol[S]):
    """What the fold asks of an interpreter. Every method may change and return the state it is given."""

    def leaf(self, leaf: Any, state: S) -> list[S]: ...
    def split(self, test: Term, state: S) -> tuple[list[S], list[S]]: ...
    def elements(self, loop: Loop, state: S) -> list[Any] | None: ...
    def bind_element(self, loop: Loop, state: S, element: Any) -> S: ...
    def advance(self, loop: Loop, state: S, first: bool) -> tuple[list[S], list[S]]: ...
    def begun(self, loop: Loop, states: list[S]) -> Any: ...
    def turned(self, loop: Loop, states: list[S], begun: Any) -> list[S]: ...
    def gather(self, node: Gather, state: S) -> list[S]: ...
    def enter(self, node: With, state: S) -> list[S]: ...
    def leave(self, node: With, state: S) -> list[S]: ...
    def guarded(self, node: Branch, arm: bool) -> None: ...
    def unguarded(self) -> None: ...
    def settle(self, states: list[S]) -> list[S]: ...
    def copy(self, state: S) -> S: ...
    def same(self, one: S, other: S) -> bool: ...
    def tidy(self, state: S, temps: int) -> None: ...


@dataclass(slots=True)
class Flow:
    """Where the states are after a trace: at its end, or on their way out by kind of exit."""

    ends: list[Any] = field(default_factory=list)
    exits: dict[str, list[Any]] = field(default_factory=dict)

    def absorb(self, other: Flow, *, but: tuple[str, ...] = ()) -> None:
        """Take over the exits of a part, except those that land here."""
        for kind, states in other.exits.items():
            if kind not in but:
                self.exits.setdefault(kind, []).extend(states)


def fold(trace: Trace, states: list[Any], machine: Machine[Any]) -> Flow:
    """Run `states` through `trace`; the states given may be changed."""
    match trace:
        case Seq(items):
            flow = Flow(states)
            for item in items:
                if not flow.ends:
                    break
                part = fold(item, flow.ends, machine)
                flow.absorb(part)
                flow.ends = part.ends
            return flow
        case Stmt(_, body, temps):
            flow = fold(body, states, machine)
            for there in (flow.ends, *flow.exits.values()):
                for state in there:
                    machine.tidy(state, temps)
            return flow
        case Branch():
            return _branch(trace, states, machine)
        case Loop():
            return _loop(trace, states, machine)
        case Try():
            return _try(trace, states, machine)
        case With():
            return _with(trace, states, machine)
        case Gather():
            return Flow(machine.settle([after for state in states for after in machine.gather(trace, state)]))
        case Exit(_, kind):
            return Flow([], {kind: [after for state in states for after in machine.leaf(trace, state)]})
        case _:
            return Flow([after for state in states for after in machine.leaf(trace, state)])


def _branch(branch: Branch, states: list[Any], machine: Machine[Any]) -> Flow:
    yes: list[Any] = []
    no: list[Any] = []
    for state in states:
        true, false = machine.split(branch.test, state)
        yes += true
        no += false
    flow = Flow()
    for arm, entering, body in ((True, yes, branch.then), (False, no, branch.other)):
        if not entering:
            continue
        machine.guarded(branch, arm)
        part = fold(body, entering, machine)
        machine.unguarded()
        flow.absorb(part)
        flow.ends += part.ends
    flow.ends = machine.settle(flow.ends)
    return flow


def _loop(loop: Loop, states: list[Any], machine: Machine[Any]) -> Flow:
    flow = Flow()
    leaving: list[Any] = []
    unknown: list[Any] = []
    for state in states:
        known = machine.elements(loop, state)
        if known is None:
            unknown.append(state)
            continue
        turning = [state]
        for element in known:
            entering = [machine.bind_element(loop, each, element) for each in turning]
            part = fold(loop.body, entering, machine)
            flow.absorb(part, but=("break", "continue"))
            flow.ends += part.exits.get("break", [])
            turning = machine.settle(part.ends + part.exits.get("continue", []))
        leaving += turning
    seen: list[Any] = []
    for turn in range(MAX_TURNS):
        fresh = []
        for state in unknown:
            if not any(machine.same(state, other) for other in seen):
                fresh.append(state)
            elif loop.test is None:
                # A `for` takes no way out before its first turn: a state it began in may leave when it comes back.
                leaving += machine.advance(loop, state, False)[1]
        if not fresh:
            break
        seen += [machine.copy(state) for state in fresh]
        head = fold(loop.head, fresh, machine)
        flow.absorb(head)
        entering = []
        for state in head.ends:
            inside, outside = machine.advance(loop, state, turn == 0)
            entering += inside
            leaving += outside
        begun = machine.begun(loop, entering)
        part = fold(loop.body, entering, machine)
        flow.absorb(part, but=("break", "continue"))
        flow.ends += part.exits.get("break", [])
        unknown = part.ends + part.exits.get("continue", [])
        if turn == 0 and loop.test is None:
            unknown = machine.turned(loop, unknown, begun)
        unknown = machine.settle(unknown)
    leaving = machine.settle(leaving)
    if loop.other.items:
        part = fold(loop.other, leaving, machine)
        flow.absorb(part)
        leaving = part.ends
    flow.ends = machine.settle(flow.ends + leaving)
    return flow


def _try(node: Try, states: list[Any], machine: Machine[Any]) -> Flow:
    before = [machine.copy(state) for state in states] if node.handlers else []
    body = fold(node.body, states, machine)
    flow = Flow()
    flow.absorb(body, but=("raise",) if node.handlers else ())
    ends = body.ends
    if node.handlers:
        # An exception may strike anywhere in the body: before its first effect, or after its last.
        struck = before + body.exits.get("raise", []) + [machine.copy(state) for state in ends]
        struck = machine.settle(struck)
        caught: list[Any] = []
        for position, handler in enumerate(node.handlers):
            last = position == len(node.handlers) - 1
            part = fold(handler, struck if last else [machine.copy(state) for state in struck], machine)
            flow.absorb(part)
            caught += part.ends
    else:
        caught = []
    if node.other.items:
        part = fold(node.other, ends, machine)
        flow.absorb(part)
        ends = part.ends
    flow.ends = machine.settle(ends + caught)
    if node.final.items:
        flow = _finally(flow, node.final, machine)
    return flow


def _finally(flow: Flow, final: Seq, machine: Machine[Any]) -> Flow:
    after = Flow()
    for kind, states in [("", flow.ends), *flow.exits.items()]:
        if not states:
            continue
        part = fold(final, states, machine)
        after.absorb(part)
        if kind:
            after.exits.setdefault(kind, []).extend(part.ends)
        else:
            after.ends = part.ends
    return after


def _with(node: With, states: list[Any], machine: Machine[Any]) -> Flow:
    entered = [after for state in states for after in machine.enter(node, state)]
    part = fold(node.body, entered, machine)
    flow = Flow([after for state in part.ends for after in machine.leave(node, state)])
    for kind, leaving in part.exits.items():
        flow.exits[kind] = [after for state in leaving for after in machine.leave(node, state)]
    flow.ends = machine.settle(flow.ends)
    return flow
