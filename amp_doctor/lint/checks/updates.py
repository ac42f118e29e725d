"""AMP206 to 208, 217 to 220, 227, 243: the order of unscale_, step and update."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Fix
from amp_doctor.lint.checks.blame import function_of
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import OpCall, Step, Unscale, Update
from amp_doctor.lint.objects import Tensor
from amp_doctor.lint.paths import Site, calls
from amp_doctor.lint.typestate import Grads, Optimizer, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP206", on=(Step, Unscale))
def missing_update(at: Moment[Step] | Moment[Unscale]) -> Iterator[Draft]:
    scaler = at.event.scaler
    before = at.state.protocol.get(at.event.optimizer.oid)
    if scaler is None or before.stage is not Stage.STEPPED or not before.fresh or before.scaler != scaler.oid:
        return
    yield at.finding(
        "scaler.update() is not reached before the next step(), which raises",
        at=before.step_at,
        trail=[
            (before.step_at, "stepped here"),
            (before.backward_at, "the next backward"),
            (at.event.at, "and the scaler is used again without update()"),
        ],
        fix=_add_update(at, before.step_at),
    )


def _add_update(at: Moment[Any], step_at: int) -> Fix | None:
    function = function_of(at)
    site = next((site for site in calls(function.body) if site.leaf.at == step_at), None)
    if site is None or any(each.method == "update" and each.receiver == site.receiver for each in calls(function.body)):
        return None
    line = f"{site.receiver}.update()"
    return at.fix(f"insert `{line}`", Applicability.UNSAFE, at.insert_after(step_at, line))


def _skipped_update(at: Moment[Unscale]) -> Site | None:
    """The update() of this scaler in this function that the path did not take."""
    sites = list(calls(function_of(at).body))
    here = next((site for site in sites if site.leaf.at == at.event.at), None)
    updates = [
        site
        for site in sites
        if site.method == "update"
        and here is not None
        and site.receiver == here.receiver
        and not any(
            f"not {test}" in here.tests or test == f"not {other}" for test in site.tests for other in here.tests
        )
    ]
    if here is None or not updates:
        return None
    # What is asked around both of them does not keep the one from the other.
    return replace(updates[-1], tests=tuple(test for test in updates[-1].tests if test not in here.tests))


def _accumulates(site: Site) -> bool:
    return any("Modulo" in test or "accum" in test or "sync" in test for test in site.tests)


@check("AMP217", on=Unscale)
def unscale_twice(at: Moment[Unscale]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if before.stage is not Stage.UNSCALED or (before.fresh and not _again(at, before)):
        return
    yield at.finding(
        "this optimizer was already unscaled since the last update(): the call raises",
        trail=[(before.unscale_at, "already unscaled here")],
    )


def _again(at: Moment[Unscale], before: Optimizer) -> bool:
    """Another unscale_() further up in the same pass did it, before one more backward: no path to blame."""
    sites = {site.leaf.at: site for site in calls(function_of(at).body)}
    first, second = sites.get(before.unscale_at), sites.get(at.event.at)
    if first is None or second is None or first.loops != second.loops or first.leaf.at >= second.leaf.at:
        return False
    return not any(site.method == "update" and first.leaf.at < site.leaf.at < second.leaf.at for site in sites.values())


@check("AMP218", on=Unscale)
def unscale_after_step(at: Moment[Unscale]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if before.stage is Stage.STEPPED and not before.fresh:
        yield at.finding("unscale_() is called after step(): the call raises", trail=[(before.step_at, "stepped here")])


@check("AMP206", on=Unscale)
def update_not_reached(at: Moment[Unscale]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    # The optimizers of a list nobody saw are told apart on every turn; the scaler remembers for all of them.
    turn = (
        at.event.optimizer.oid.startswith("each@") and at.state.protocol.left_open(at.event.scaler.oid) == at.event.at
    )
    if not turn and (before.stage is not Stage.UNSCALED or not before.fresh or _again(at, before)):
        return
    update = _skipped_update(at)
    if update is not None and not _accumulates(update):
        yield at.finding(
            "on some paths scaler.update() is not reached although unscale_() was called: the next unscale_() raises",
            at=update.leaf.at,
            trail=[
                (before.unscale_at or at.event.at, "unscaled here"),
                (before.backward_at, "the next backward, with no update() between"),
            ],
        )


@check("AMP219", on=(Unscale, Step))
def unscale_while_accumulating(at: Moment[Unscale] | Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if at.event.scaler is None or not before.late:
        return
    if isinstance(at.event, Unscale):
        update = _skipped_update(at)
        if before.stage is not Stage.UNSCALED or (update is not None and not _accumulates(update)):
            return
    yield at.finding(
        "unscale_() is called before all gradients are accumulated: scaled ones are added to unscaled ones",
        at=before.unscale_at,
        trail=[(before.unscale_at, "unscaled here"), (before.backward_at, "scaled gradients are added here")],
    )


@check("AMP207", on=Step)
def update_between_steps(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if (
        at.event.scaler is None
        or before.updates != "between"
        or not before.linked
        or before.grads not in (Grads.SCALED, Grads.UNSCALED)
    ):
        return
    yield at.finding(
        "update() runs before all optimizers were stepped: the scale may change between them",
        at=before.update_at,
        trail=[
            (before.backward_at, "scaled gradients come from here"),
            (at.event.at, "this optimizer is stepped after the update"),
        ],
    )


@check("AMP220", on=Step)
def update_between_unscale_and_step(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if at.event.scaler is None or before.updates != "early" or before.grads is not Grads.UNSCALED:
        return
    yield at.finding(
        "update() between unscale_() and step() makes step() unscale a second time",
        at=before.update_at,
        trail=[(before.unscale_at, "unscaled here"), (at.event.at, "unscaled again here")],
    )


@check("AMP243", on=Update)
def several_updates(at: Moment[Update]) -> Iterator[Draft]:
    """Backward, step and update() for each network in turn: an update() too early for a step is AMP207's."""
    sites = list(calls(function_of(at).body))
    here = next((site for site in sites if site.leaf.at == at.event.at), None)
    if here is None or not here.receiver or at.event.new_scale is not None:
        return
    for site in sites:
        same = site.method == "update" and site.receiver == here.receiver and site.loops == here.loops
        if same and site.leaf.at < here.leaf.at and site.tests == here.tests[: len(site.tests)]:
            between = {each.method for each in sites if site.leaf.at < each.leaf.at < here.leaf.at}
            if {"backward", "step"} <= between:
                yield at.finding(
                    "update() is called more than once in one pass: the scale can grow or back off twice per iteration",
                    at=site.leaf.at,
                    trail=[(at.event.at, "and called again here")],
                )
                return


@check("AMP208", on=Update)
def update_without_step(at: Moment[Update]) -> Iterator[Draft]:
    if at.event.new_scale is None and at.state.protocol.pending(at.event.scaler.oid) == 0:
        yield at.finding(
            "there is no step() or unscale_() since the last update(): the call raises for want of inf checks"
        )


@check("AMP227", on=OpCall)
def scaled_loss_reused(at: Moment[OpCall]) -> Iterator[Draft]:
    name = at.event.name
    values = [at.event.receiver] if name.startswith("Tensor.") else [value for _, value in at.event.args]
    reads = name in ("Tensor.item", "Tensor.tolist", "Tensor.numpy", "builtins.float", "builtins.print")
    if not reads or not any(
        isinstance(value, Tensor) and value.scaled and "gradient" not in value.tags for value in values
    ):
        return
    statement = at.home(at.event.at).places.statement(at.event.at)
    if any(isinstance(value, Tensor) and "outdated" in value.tags for value in values) and re.search(
        r"/\s*[\w.]+\.get_scale\(\)", at.text(statement)
    ):
        yield at.finding(
            "this loss was scaled before update(), which may have changed the scale it is divided by; keep the "
            "unscaled tensor for logging"
        )
        return
    if "scale" not in at.text(statement):
        yield at.finding(
            "this is the loss multiplied by the loss scale; keep the unscaled tensor for logging",
            trail=[(values[0].at, "scaled here")] if isinstance(values[0], Tensor) else [],
        )
