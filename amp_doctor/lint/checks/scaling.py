"""AMP2: the order of scale, backward, unscale_, clip, step and update."""

from __future__ import annotations

from collections.abc import Iterator

from amp_doctor.finding import Applicability
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import Clip
from amp_doctor.lint.typestate import Grads


@check("AMP201", on=Clip)
def clip_before_unscale(at: Moment[Clip]) -> Iterator[Draft]:
    pending = [(oid, o) for oid, o in at.state.protocol.known() if o.grads not in (Grads.EMPTY, Grads.SPENT)]
    if at.event.owners:
        pending = [(oid, o) for oid, o in pending if oid in at.event.owners]
    if pending and all(o.grads is Grads.SCALED for _, o in pending):
        oid, optimizer = pending[0]
        yield at.finding(
            "gradients are clipped while still multiplied by the loss scale",
            trail=[(optimizer.backward_at, "scaled gradients come from here")],
        )
