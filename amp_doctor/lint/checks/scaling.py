"""AMP2, the protocol: the order of scale, backward, unscale_, clip, step and update."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Confidence, Fix
from amp_doctor.lint.apis import FRAMEWORK_WORDS
from amp_doctor.lint.assume import none_test
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Backward, Clip, GradRead, OpCall, Operation, Scale, Step, Unscale, Update
from amp_doctor.lint.objects import Code, Items, Literal, Object, Symbol, Tensor, Value
from amp_doctor.lint.paths import Site, calls, loads
from amp_doctor.lint.protocol import parameters_of
from amp_doctor.lint.trace import Bind, Const, Function, Name, Seq, Stmt
from amp_doctor.lint.typestate import ANY, Grads, Optimizer, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCALER_WORDS = frozenset({"scaler", "unscale_", "scale", "grad_scaler", "amp_scaler", "_scaler"})
_BUSY = (Grads.SCALED, Grads.UNSCALED, Grads.PLAIN, Grads.UNKNOWN)


# --- what several checks ask ---------------------------------------------------------------------


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
    return isinstance(limit, Literal) and limit.value in (float("inf"), "inf")


def unscale_before(at: Moment[Any], place: int) -> Fix | None:
    """Insert `scaler.unscale_(optimizer)` when this function steps exactly one optimizer."""
    names = stepped_names(function_of(at))
    if len(names) != 1 or place != at.event.at:
        return None
    line = f"{names[0][0]}.unscale_({names[0][1]})"
    return at.fix(f"insert `{line}`", Applicability.UNSAFE, at.insert_before(place, line))


# --- clipping and reading gradients --------------------------------------------------------------


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


# --- backward ------------------------------------------------------------------------------------


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
    return
    yield


@check("AMP209", on=Finished)
def float16_without_scaler_end(at: Moment[Finished]) -> Iterator[Draft]:
    if any(isinstance(event, Step) for event in at.event.log):
        yield from at.interpreter.facts.get("unscaled", {}).values()


# --- step ----------------------------------------------------------------------------------------


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
    if at.event.scaler is not None:
        return
    draft = at.finding(
        "the optimizer is stepped directly although the scaler steps this optimizer",
        trail=[(before.step_at, "the scaler stepped it here")],
        fix=at.fix("delete the plain step", Applicability.UNSAFE, at.delete_line(at.event.at))
        if _own_line(at)
        else None,
    )
    if before.grads is Grads.SPENT and before.scaler is not None and not before.stepped_plain and not before.fresh:
        yield draft
    elif before.grads is Grads.EMPTY and at.event.optimizer.origin == "constructed":
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


# --- unscale_ and update -------------------------------------------------------------------------


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


__all__ = ["Items"]
