"""What a `with` does to a path: autocast regions, grad modes and contexts that nobody knows, entered and left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.lint.assume import assume, decide
from amp_doctor.lint.events import Enter
from amp_doctor.lint.machine import binding, library
from amp_doctor.lint.objects import NONE, Literal, Object, Value
from amp_doctor.lint.state import Region

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State
    from amp_doctor.lint.trace import Term


def enter(m: Interpreter, at: int, context: Value, target: Term | None, state: State) -> None:
    """Enter a context; what it was is kept in `state.modes` until it is left."""
    match context:
        case Object("autocast"):
            mark = _enter_region(m, at, context, state)
        case Object("null"):
            mark = f"null:off@{at}"
            m.facts.setdefault(f"with:{at}", set()).add("null")
        case Object("mode"):
            mark = f"mode:{context.api}"
        case _:
            mark = "other"
            library.unknown_context(m, at, context, state)
    state.modes = (*state.modes, mark)
    if target is not None:
        binding.bind(m, target, context, state, at)


def _enter_region(m: Interpreter, at: int, context: Object, state: State) -> str:
    region = region_of(context, at)
    m.emit(Enter(at, region), state)
    if not state.regions:
        # The outermost region starts with an empty cache of cast weights.
        for key in [key for key in state.heap if key[0] == "%cached"]:
            del state.heap[key]
    enabled = decide(region.enabled, state.known)
    if enabled is None:
        # What goes wrong while autocast is on is what matters.
        state.known = (assume(region.enabled, True, state.known) or [state.known])[0]
    # An island of float32 inside a region that is on does not turn mixed precision off.
    inside = any(decide(outer.enabled, state.known) is not False for outer in state.regions)
    state.regions = (*state.regions, region)
    m.facts.setdefault(f"with:{at}", set()).add("off" if enabled is False else "autocast")
    return "region" if enabled is not False or inside else f"region:off@{at}"


def leave(state: State) -> None:
    """Leave the innermost context."""
    if state.modes:
        mark, state.modes = state.modes[-1], state.modes[:-1]
        if mark.startswith("region"):
            state.regions = state.regions[:-1]


def region_of(context: Object, at: int) -> Region:
    """The region that entering an autocast object begins."""
    device, dtype, cache = (_constant(context.fact(name)) for name in ("device", "dtype", "cache"))
    return Region(
        device=device if isinstance(device, str) else None,
        dtype=str(dtype) if dtype else None,
        enabled=context.fact("enabled") or NONE,
        cache=cache,
        at=at,
    )


def _constant(value: Value | None) -> Any:
    return value.value if isinstance(value, Literal) else None
