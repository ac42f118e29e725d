"""What several checks of gradient scaling ask: which function, optimizer and line a finding is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Fix
from amp_doctor.lint.objects import Literal
from amp_doctor.lint.paths import calls
from amp_doctor.lint.typestate import Grads, Optimizer

if TYPE_CHECKING:
    from amp_doctor.lint.checks.registry import Moment
    from amp_doctor.lint.events import Clip, GradRead
    from amp_doctor.lint.trace import Function


_SCALER_WORDS = frozenset({"scaler", "unscale_", "scale", "grad_scaler", "amp_scaler", "_scaler"})
_BUSY = (Grads.SCALED, Grads.UNSCALED, Grads.PLAIN, Grads.UNKNOWN)


def function_of(at: Moment[Any]) -> Function:
    """The function that is being followed at this moment."""
    return at.interpreter.stack[-1].function


def blame(at: Moment[Any]) -> int:
    """Where an innocent helper was called from: code that knows no scaler cannot be told to unscale."""
    place: int = at.event.at
    for call in reversed(at.interpreter.stack):
        if (
            not call.site
            or call.function.words & _SCALER_WORDS
            or any("scaler" in word for word in call.function.words)
        ):
            break
        place = call.site
    return place


def scaled_owners(at: Moment[Clip] | Moment[GradRead]) -> list[tuple[str, Optimizer]]:
    """The optimizers whose gradients are looked at while scaled: empty unless that is so for every one concerned."""
    known = at.state.protocol.known()
    if at.event.owners:
        known = [(oid, each) for oid, each in known if oid in at.event.owners]
    busy = [(oid, each) for oid, each in known if each.grads in _BUSY]
    return busy if busy and all(each.grads is Grads.SCALED for _, each in busy) else []


def stepped_names(function: Function) -> list[tuple[str, str]]:
    """(scaler, optimizer) as this function writes them in `scaler.step(optimizer)`."""
    sites = list(calls(function.body))
    scalers = {site.receiver for site in sites if site.method in ("scale", "unscale_", "update")}
    found = {
        (site.receiver, site.argument())
        for site in sites
        if site.method == "step" and site.receiver in scalers and site.argument()
    }
    return sorted(found)


def endless(limit: object) -> bool:
    """A clip that only measures: its limit is infinite."""
    return isinstance(limit, Literal) and limit.value in (float("inf"), "inf")


def unscale_before(at: Moment[Any], place: int) -> Fix | None:
    """Insert `scaler.unscale_(optimizer)` when this function steps exactly one optimizer."""
    names = stepped_names(function_of(at))
    if len(names) != 1 or place != at.event.at:
        return None
    line = f"{names[0][0]}.unscale_({names[0][1]})"
    return at.fix(f"insert `{line}`", Applicability.UNSAFE, at.insert_before(place, line))
