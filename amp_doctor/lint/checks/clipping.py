"""AMP201, 215, 216, 221: gradients that are clipped or read in the wrong units."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.lint.checks.blame import blame, endless, function_of, scaled_owners, unscale_before
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import Clip, GradRead
from amp_doctor.lint.objects import Object
from amp_doctor.lint.typestate import Grads, Optimizer, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP201", on=Clip)
def clip_before_unscale(at: Moment[Clip]) -> Iterator[Draft]:
    owners = scaled_owners(at)
    if not owners or endless(at.event.max_norm) or _unscaled_elsewhere(at, owners):
        return
    if isinstance(at.event.max_norm, Object) and at.event.max_norm.role == "scale":
        return
    place = blame(at)
    yield at.finding(
        "gradients are clipped while still multiplied by the loss scale; call unscale_ on the optimizer first",
        at=place,
        trail=[(owners[0][1].backward_at, "scaled gradients come from here")],
        fix=unscale_before(at, place),
    )


def _unscaled_elsewhere(at: Moment[Clip], owners: list[tuple[str, Optimizer]]) -> bool:
    """Another optimizer was unscaled on this path: AMP221 tells the two apart."""
    names = {oid for oid, _ in owners}
    return any(each.stage is Stage.UNSCALED for oid, each in at.state.protocol.known() if oid not in names)


@check("AMP221", on=Clip)
def unscale_other_optimizer(at: Moment[Clip]) -> Iterator[Draft]:
    owners = scaled_owners(at)
    if (
        not owners
        or not at.event.owners
        or not _unscaled_elsewhere(at, owners)
        or not all(each.linked for _, each in owners)
    ):
        return
    names = {oid for oid, _ in owners}
    other = next(each for oid, each in at.state.protocol.known() if oid not in names and each.stage is Stage.UNSCALED)
    yield at.finding(
        "these parameters belong to another optimizer than the one that was unscaled",
        trail=[
            (owners[0][1].backward_at, "scaled gradients come from here"),
            (other.unscale_at, "only this optimizer was unscaled"),
        ],
    )


@check("AMP215", on=Clip)
def clip_after_step(at: Moment[Clip]) -> Iterator[Draft]:
    known = at.state.protocol.known()
    if at.event.owners:
        known = [(oid, each) for oid, each in known if oid in at.event.owners]
    busy = [each for _, each in known if each.grads is not Grads.EMPTY]
    if (
        not busy
        or endless(at.event.max_norm)
        or not all(each.grads is Grads.SPENT and each.scaler and not each.stepped_plain for each in busy)
    ):
        return
    yield at.finding(
        "gradients are clipped after the step that used them",
        at=blame(at),
        trail=[(busy[0].step_at, "the optimizer was stepped here")],
    )


@check("AMP216", on=GradRead)
def grad_read_before_unscale(at: Moment[GradRead]) -> Iterator[Draft]:
    owners = scaled_owners(at)
    if at.event.how not in ("read", "write") or not owners:
        return
    statement = at.text(at.home(at.event.at).places.statement(at.event.at))
    function = function_of(at)
    body = at.module.code if function.name == "<module>" else at.text(function.at)
    factors = re.findall(r"^\s*(\w+)\s*=.*(?:get_scale\(|loss_scale)", body, re.MULTILINE)
    if any(re.search(rf"\b{factor}\b", statement) for factor in factors) or "scale" in statement:
        return  # divided by the scale on the spot
    yield at.finding(
        "gradients are read or changed while still multiplied by the loss scale; call unscale_ on the optimizer first",
        at=blame(at),
        trail=[(owners[0][1].backward_at, "scaled gradients come from here")],
    )
