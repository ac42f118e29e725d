"""AMP223, 224, 233, 237, 240: gradient penalties, losses and NaN tests that go wrong with a scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint import paths
from amp_doctor.lint.checks.blame import function_of
from amp_doctor.lint.checks.registry import Draft, Moment, check
from amp_doctor.lint.events import Backward, OpCall, Scale
from amp_doctor.lint.objects import Literal, Tensor
from amp_doctor.lint.typestate import Grads

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP223", on=OpCall)
def remember_gradient(at: Moment[OpCall]) -> Iterator[Draft]:
    if at.event.name == "torch.autograd.grad":
        create = at.event.arg(4, "create_graph")
        if isinstance(create, Literal) and create.value is True:
            at.interpreter.facts["penalty"] = at.event.at
    yield from ()


@check("AMP223", on=Scale)
def unscaled_gradient_penalty(at: Moment[Scale]) -> Iterator[Draft]:
    tensor = at.event.operand
    place = at.interpreter.facts.get("penalty")
    if (
        place is None
        or not isinstance(tensor, Tensor)
        or "gradient" not in tensor.tags
        or "fp16" not in tensor.tags
        or "rescaled" in tensor.tags
    ):
        return
    words = (
        "not divided by the loss scale before it is combined"
        if tensor.scaled
        else "not scaled: small gradients are lost in float16"
    )
    yield at.finding(
        f"the gradient of this penalty is {words}",
        at=place,
        trail=[(at.event.at, "it becomes part of the loss that is scaled here")],
    )


@check("AMP224", on=OpCall)
def penalty_outside_autocast(at: Moment[OpCall]) -> Iterator[Draft]:
    tensor = at.event.receiver
    if (
        not at.event.name.startswith("Tensor.")
        or not isinstance(tensor, Tensor)
        or not {"gradient", "rescaled"} <= tensor.tags
    ):
        return
    if (
        at.region() is None
        and "fp16" in tensor.tags
        and tensor.dtype != "float32"
        and at.event.name not in ("Tensor.float", "Tensor.detach", "Tensor.item", "Tensor.to")
    ):
        yield at.finding(
            "the penalty is computed outside autocast", at=at.home(at.event.at).places.statement(at.event.at)
        )


@check("AMP237", on=Backward)
def loss_without_graph(at: Moment[Backward]) -> Iterator[Draft]:
    tensor = at.event.tensor
    if isinstance(tensor, Tensor):
        for tag in tensor.tags:
            if tag.startswith("leaf@"):
                yield at.finding(
                    "a new tensor made from numbers is used as the loss: no gradient reaches the model",
                    at=int(tag[5:]),
                    trail=[(at.event.at, "backward ends at that tensor")],
                )


@check("AMP240", on=Scale)
def unreduced_half_loss(at: Moment[Scale]) -> Iterator[Draft]:
    tensor = at.event.operand
    if isinstance(tensor, Tensor) and tensor.dtype == "float16" and tensor.sure and "unreduced" in tensor.tags:
        yield at.finding("a float16 loss overflows when it is multiplied by the scale: 65,536 alone is beyond 65,504")


@check("AMP233", on=OpCall)
def nan_guard_around_scaler(at: Moment[OpCall]) -> Iterator[Draft]:
    if at.event.name.rpartition(".")[2] not in ("isnan", "isfinite", "isinf"):
        return
    busy = [
        each for _, each in at.state.protocol.known() if each.grads in (Grads.SCALED, Grads.UNSCALED) and each.fresh
    ]
    if not busy or not any(
        isinstance(value, Tensor) and "norm" not in value.tags
        for value in (at.event.receiver, *(value for _, value in at.event.args))
    ):
        return
    temp = next((site.leaf.temp for site in paths.calls(function_of(at).body) if site.leaf.at == at.event.at), None)
    for branch in paths.branches(function_of(at).body):
        if temp and temp in paths.written(branch.test) and "continue" in paths.exits(branch.then):
            yield at.finding(
                "the scaler skips steps with inf or nan by itself; leaving here skips update(), so the scale stays"
            )
            return
