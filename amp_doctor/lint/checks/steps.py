"""AMP204, 205, 212, 214, 222, 234, 241: optimizers that are stepped past the scaler, twice, or for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Confidence
from amp_doctor.lint.assume import none_test
from amp_doctor.lint.checks.blame import function_of
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Scale, Step
from amp_doctor.lint.machine.ownership import parameters_of
from amp_doctor.lint.objects import Code, Literal, Symbol, Value
from amp_doctor.lint.paths import calls
from amp_doctor.lint.trace import Const
from amp_doctor.lint.typestate import ANY, Grads, Optimizer, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP204", on=Step)
def plain_step_on_scaled_gradients(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if (
        at.event.scaler is not None
        or before.grads is not Grads.SCALED
        or not before.linked
        or _sibling(at, before) is not None
    ):
        return
    function = function_of(at)
    scalers = {site.receiver for site in calls(function.body) if site.method in ("scale", "unscale_")}
    site = next((site for site in calls(function.body) if site.leaf.at == at.event.at), None)
    edit = (
        at.replace(at.event.at, f"{next(iter(scalers))}.step({site.receiver})")
        if len(scalers) == 1 and site is not None and not site.leaf.args
        else None
    )
    yield at.finding(
        "the optimizer is stepped on gradients that are still multiplied by the loss scale",
        trail=[(before.backward_at, "scaled gradients come from here")],
        fix=at.fix("step through the scaler", Applicability.UNSAFE, edit),
    )


def _sibling(at: Moment[Step], before: Optimizer) -> Optimizer | None:
    """Another optimizer that the same scaler stepped on this path."""
    for oid, each in at.state.protocol.optimizers:
        if (
            oid not in (ANY, at.event.optimizer.oid)
            and each.scaler == before.scaler
            and each.grads is Grads.SPENT
            and not each.stepped_plain
        ):
            return each
    return None


@check("AMP214", on=Step)
def optimizer_outside_scaler(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if at.event.scaler is not None or before.grads is not Grads.SCALED or not before.linked:
        return
    sibling = _sibling(at, before)
    if sibling is not None:
        yield at.finding(
            "this optimizer receives scaled gradients but is not stepped by the scaler",
            trail=[
                (before.backward_at, "scaled gradients come from here"),
                (sibling.step_at, "the other optimizer goes through the scaler"),
            ],
        )


@check("AMP205", on=Step)
def plain_step_beside_scaler(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    spent = before.grads is Grads.SPENT and before.scaler is not None and not before.stepped_plain and not before.fresh
    idle = before.grads is Grads.EMPTY and at.event.optimizer.origin == "constructed"
    if at.event.scaler is not None or not (spent or idle):
        return
    draft = at.finding(
        "the optimizer is stepped directly although the scaler steps this optimizer",
        trail=[(before.step_at, "the scaler stepped it here")],
        fix=at.fix("delete the plain step", Applicability.UNSAFE, at.delete_line(at.event.at))
        if _own_line(at)
        else None,
    )
    if spent:
        yield draft
    else:
        at.interpreter.facts.setdefault("idle", []).append((at.event.optimizer.oid, draft))


def _own_line(at: Moment[Any]) -> bool:
    return at.home(at.event.at) is at.module


@check("AMP205", on=Finished)
def plain_step_beside_scaler_end(at: Moment[Finished]) -> Iterator[Draft]:
    driven = {event.optimizer.oid for event in at.event.log if isinstance(event, Step) and event.scaler is not None}
    for oid, draft in at.interpreter.facts.get("idle", []):
        if oid in driven:
            yield draft


@check("AMP234", on=Step)
def step_twice(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if (
        at.event.scaler is None
        or before.stage is not Stage.STEPPED
        or before.fresh
        or before.scaler != at.event.scaler.oid
    ):
        return
    yield at.finding(
        "this optimizer is stepped twice by the scaler before update(): the second step raises",
        trail=[(before.step_at, "first stepped here")],
    )


@check("AMP212", on=Step)
def mixed_scalers(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    scaler = at.event.scaler
    if (
        scaler is None
        or before.grads not in (Grads.SCALED, Grads.UNSCALED)
        or not before.linked
        or before.scaler in (None, scaler.oid)
    ):
        return
    made = {
        event.scaler.oid
        for event in at.interpreter.log
        if isinstance(event, Scale) and event.scaler.origin == "constructed"
    }
    if scaler.origin == "constructed" and before.scaler in made:
        yield at.finding(
            "these gradients carry the loss scale of another scaler than the one that steps",
            trail=[(before.backward_at, "scaled here"), (at.event.at, "stepped by another scaler")],
        )


@check("AMP222", on=Step)
def closure_with_scaler(at: Moment[Step]) -> Iterator[Draft]:
    closure = at.event.closure
    if at.event.scaler is None:
        return
    known = isinstance(closure, Code) or (closure is not None and "closure" in at.interpreter.name_of(closure))
    if (known and not _left_out(at, closure)) or at.event.optimizer.api.endswith(".LBFGS"):
        yield at.finding(
            "GradScaler.step does not support a closure: its gradients are not unscaled (and a keyword closure raises)"
        )


def _left_out(at: Moment[Step], value: Value | None) -> bool:
    """True for an argument handed on that is None unless a caller gives one."""
    if not isinstance(value, Symbol) or not at.interpreter.stack or at.decide(none_test(value)) is False:
        return False
    defaults = {param.name: param.default for param in function_of(at).params}
    default = defaults.get(value.name)
    return isinstance(default, Const) and default.value is None


@check("AMP241", on=Step)
def optimizer_without_gradients(at: Moment[Step]) -> Iterator[Draft]:
    optimizer = at.event.optimizer
    modules = parameters_of(at.state, optimizer.oid)
    if at.event.scaler is None or not modules or optimizer.origin != "constructed":
        return
    before = at.state.protocol.get(optimizer.oid)
    frozen = all(at.state.heap.get((oid, "%frozen")) == Literal(True) for oid in modules)
    others = [
        each
        for oid, each in at.state.protocol.optimizers
        if oid not in (ANY, optimizer.oid) and each.backward_at and each.linked
    ]
    dropped = before.backward_at and any(each.grads is Grads.SPENT and each.scaler for each in others)
    if frozen or (before.grads is Grads.EMPTY and others and (dropped or not before.backward_at)):
        yield at.finding(
            "this optimizer got no gradient from the scaled loss: step() raises because no inf checks were recorded",
            confidence=Confidence.MEDIUM,
        )
