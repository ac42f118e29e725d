"""One entry point: a function that is run from a state in which nobody knows its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint.machine import contexts, follow
from amp_doctor.lint.machine.interpreter import BUDGET, SHARE, Call, Interpreter, OutOfBudget

if TYPE_CHECKING:
    from amp_doctor.lint.objects import Object
    from amp_doctor.lint.state import State
    from amp_doctor.lint.trace import Function


def run(m: Interpreter, function: Function, state: State, receiver: Object | None = None) -> list[State]:
    """All of the function: nobody knows its arguments or what happened before."""
    frame = m.frame(m.module.frame, 0, function.at)
    m.parents[frame] = m.module.frame
    for param in function.params:
        state.env[(frame, param.name)] = follow.parameter(m, param, frame, state)
    if receiver is not None and function.params:
        state.env[(frame, function.params[0].name)] = receiver
    for context in follow.decorator_contexts(function, m.module.frame, state):
        contexts.enter(m, function.at, context, None, state)
    m.stack.append(Call(function, frame))
    m.limit = m.spent + SHARE
    try:
        return m.run(m.body(function, state), state)
    except OutOfBudget:
        m.silences += 1
        if m.spent > BUDGET:
            raise
        return []
    finally:
        m.limit = BUDGET
        m.stack.clear()
        m.loops.clear()
        m.guards.clear()
        m.conditions.clear()
        m.calls.clear()


def run_quietly(m: Interpreter, function: Function, state: State, receiver: Object, quiet: bool) -> list[State]:
    """The same on a copy of the state, without a report when `quiet`: what it leaves is all that is wanted."""
    m.quiet += quiet
    try:
        return run(m, function, state.copy(), receiver)
    finally:
        m.quiet -= quiet
