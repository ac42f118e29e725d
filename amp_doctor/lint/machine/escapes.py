"""Calls of unseen code: which files are worth reading for one, and what is no longer known after it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.machine import roles
from amp_doctor.lint.objects import (
    HALF,
    Class,
    Object,
    Symbol,
    Tensor,
    flat,
)

if TYPE_CHECKING:
    from amp_doctor.lint.events import Args
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def worth_reading(func: Symbol, args: Args) -> bool:
    """Is another file worth lowering for this call? Only if it can do something to what is tracked here."""
    if (
        apis.DOES_BACKWARD.search(func.name)
        or apis.LOSSISH.search(func.name)
        or re.search(r"model|net$|build|amp|[Tt]rainer", func.name)
    ):
        return True
    return any(
        isinstance(item, Tensor | Class)
        or (isinstance(item, Object) and item.role in ("scaler", "optimizer", "module", "instance", "params"))
        for _, value in args
        for item in flat(value)
    )


def gives_half(args: Args) -> bool:
    """Tensors that autocast made go in: what the function does with them matters, whatever words it uses."""
    return any(isinstance(item, Tensor) and item.dtype == HALF for _, value in args for item in flat(value))


def escape(m: Interpreter, name: str, args: Args, state: State) -> None:
    """Scalers and optimizers that go to unseen code: nothing is known of them afterwards."""
    given = [item for _, value in args for item in flat(value)]
    for item in given:
        if isinstance(item, Tensor) and item.scaled:
            m.facts.setdefault("discarded", set()).add(item.scaled)  # the scaled loss lives on where nobody sees it
    handed = [item for item in given if isinstance(item, Object) and (item.role in ("scaler", "optimizer"))]
    symbols = [
        item for item in given if isinstance(item, Symbol) and (roles.role_by_use(m, item) in ("scaler", "optimizer"))
    ]
    holders = [item for item in given if isinstance(item, Object) and item.role == "instance" and _holds(state, item)]
    if handed or symbols or holders or (apis.DOES_BACKWARD.search(name) and (given or not args)):
        state.protocol = state.protocol.unknown()


def _holds(state: State, instance: Object) -> bool:
    return any(
        owner == instance.oid and isinstance(value, Object) and value.role in ("scaler", "optimizer")
        for (owner, _), value in state.heap.items()
    )
