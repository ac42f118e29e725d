"""AMP202, 203, 209, 213: losses that are not scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Confidence, Fix
from amp_doctor.lint.apis import FRAMEWORK_WORDS
from amp_doctor.lint.checks.blame import function_of, stepped_names
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Backward, Operation, Scale, Step
from amp_doctor.lint.objects import Literal, Object, Tensor
from amp_doctor.lint.paths import calls, loads
from amp_doctor.lint.trace import Bind, Name, Seq, Stmt
from amp_doctor.lint.typestate import Grads

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("AMP203", on=Scale)
def scale_result_discarded(at: Moment[Scale]) -> Iterator[Draft]:
    function = function_of(at)
    bound = _bound_name(function.body, at.event.at)
    if at.event.used and (bound is None or loads(function.body, bound) or _captured(at, bound)):
        return
    at.interpreter.facts.setdefault("discarded", set()).add(at.event.scaler.oid)
    plain = [site for site in calls(function.body) if site.method == "backward" and not site.leaf.args]
    edits = []
    if not at.event.used and len(plain) == 1 and plain[0].receiver and not plain[0].receiver.startswith("%"):
        scale = at.text(at.event.at)
        edits = [at.delete_line(at.event.at), at.replace(plain[0].leaf.at, f"{scale}.backward()")]
    yield at.finding(
        "the result of scale() is not used: it returns a new tensor and leaves the loss as it was",
        fix=at.fix("run backward on the scaled loss", Applicability.UNSAFE, *edits),
    )


def _captured(at: Moment[Any], name: str) -> bool:
    """A module-level or attribute name may be read elsewhere."""
    return function_of(at).name == "<module>" and any(name in function.words for function in at.module.functions)


def _bound_name(body: Seq, call_at: int) -> str | None:
    """The variable that the result of a call is bound to, if it is bound to one and nothing else is done with it."""
    from amp_doctor.lint.trace import Branch, Loop, Try, With

    for item in body.items:
        match item:
            case Bind(_, Name(_, name), Name(value_at, _)) if value_at == call_at and not name.startswith("%"):
                return name
            case Stmt(_, inner) | With(_, _, _, inner):
                parts = [inner]
            case Branch(_, _, then, other):
                parts = [then, other]
            case Loop(_, _, _, _, _, inner, other):
                parts = [inner, other]
            case Try(_, inner, handlers, other, final):
                parts = [inner, *handlers, other, final]
            case _:
                parts = []
        for part in parts:
            found = _bound_name(part, call_at)
            if found is not None:
                return found
    return None


@check("AMP202", on=Step)
def unscaled_backward(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    scaler = at.event.scaler
    if scaler is None or before.grads is not Grads.PLAIN or not before.linked or _uncorrelated(at, scaler):
        return
    if scaler.oid in at.interpreter.facts.get("discarded", ()):
        return
    yield at.finding(
        "the loss is not scaled although the scaler steps this optimizer",
        at=before.plain_at,
        trail=[
            (before.plain_at, "backward on the loss as it is"),
            (at.event.at, "the scaler divides these gradients by the loss scale here"),
        ],
        fix=_scale_loss(at, before.plain_at),
    )


def _uncorrelated(at: Moment[Step], scaler: Object) -> bool:
    """A scaler whose switch nobody saw may be off on the very path where the loss is not scaled."""
    enabled = scaler.fact("enabled")
    if isinstance(enabled, Literal) and enabled.value is True and scaler.origin == "constructed":
        return False
    return any(isinstance(event, Scale) for event in at.interpreter.log) or any(
        site.method == "scale" for f in at.module.functions for site in calls(f.body)
    )


def _scale_loss(at: Moment[Step], backward_at: int) -> Fix | None:
    function = function_of(at)
    sites = list(calls(function.body))
    site = next((site for site in sites if site.leaf.at == backward_at), None)
    scalers = {name for name, _ in stepped_names(function)} or {
        site.receiver for site in sites if site.method == "update"
    }
    if site is None or not site.receiver or site.receiver.startswith("%") or len(scalers) != 1:
        return None
    arguments = at.text(backward_at).partition(".backward(")[2]
    edit = at.replace(backward_at, f"{next(iter(scalers))}.scale({site.receiver}).backward({arguments}")
    return at.fix("scale the loss", Applicability.UNSAFE, edit)


@check("AMP213", on=Step)
def partly_scaled_losses(at: Moment[Step]) -> Iterator[Draft]:
    before = at.state.protocol.get(at.event.optimizer.oid)
    if (
        at.event.scaler is None
        or not before.plain_too
        or not before.linked
        or before.grads not in (Grads.SCALED, Grads.UNSCALED)
    ):
        return
    yield at.finding(
        "this loss is not scaled, but its gradients are added to scaled ones",
        at=before.plain_at,
        trail=[
            (before.backward_at, "these gradients are scaled"),
            (before.plain_at, "these are not"),
            (at.event.at, "and are divided by the scale here"),
        ],
    )


@check("AMP213", on=Operation)
def partly_scaled_sum(at: Moment[Operation]) -> Iterator[Draft]:
    left, right = at.event.left, at.event.right
    if at.event.op != "Add" or not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return
    plain, scaled = (left, right) if right.scaled else (right, left)
    own = plain.sources and not plain.tags & {"rescaled", "unseen", "detached", "gradient"}
    if scaled.scaled and not plain.scaled and own and "gradient" not in scaled.tags:
        yield at.finding(
            "this loss is not scaled, but it is added to a scaled one", trail=[(scaled.at, "this part is scaled")]
        )


@check("AMP209", on=Backward)
def float16_without_scaler(at: Moment[Backward]) -> Iterator[Draft]:
    tensor = at.event.tensor
    if (
        at.event.scaler is not None
        or not isinstance(tensor, Tensor)
        or "fp16" not in tensor.tags
        or tensor.tags & {"bf16", "rescaled", "unseen", "detached"}
    ):
        return
    if "scaler-words" not in at.interpreter.facts:
        at.interpreter.facts["scaler-words"] = bool(FRAMEWORK_WORDS.search(" ".join(at.module.words)))
    if at.interpreter.facts["scaler-words"]:
        return
    at.interpreter.facts.setdefault("unscaled", {})[at.event.at] = at.finding(
        "this loss was computed under float16 autocast without a gradient scaler: small gradients become zero",
        confidence=Confidence.MEDIUM,
    )
    yield from ()


@check("AMP209", on=Finished)
def float16_without_scaler_end(at: Moment[Finished]) -> Iterator[Draft]:
    if any(isinstance(event, Step) for event in at.event.log):
        yield from at.interpreter.facts.get("unscaled", {}).values()
