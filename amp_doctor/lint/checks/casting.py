"""AMP4, the weights: models cast to half precision and trained, fused optimizers, round trips."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.checks.precision import LOW, Part, has_batchnorm, keep, settled, trained_parts
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Backward, Cast, Forward, OpCall, Scale, Step, Unscale
from amp_doctor.lint.machine import modules
from amp_doctor.lint.objects import FALSE, HALF, NONE, TRUE, Literal, Object, Symbol, Tensor, Value, flat, text
from amp_doctor.lint.typestate import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUSED = re.compile(r"torch\.optim\.(\w+\.)?(Adam|AdamW|SGD|Adagrad)$")
_ORDINARY = ("torch.optim.", "bitsandbytes.optim.", "torch_optimizer.", "transformers.optimization.", "timm.optim.")
"""Optimizers that leave unscaling to the scaler, unless they are fused."""
_EPS = re.compile(r"\.(Adam|AdamW|NAdam|RAdam|Adamax|RMSprop|SparseAdam)$")
_ZERO_IN_HALF = 2.0**-25
_TRAINING = frozenset({"ema", "model_ema", "ema_model", "trainer", "training", "compute_loss"})
"""Words of a file that is called between training steps, and does not take them itself."""
_CASTS_BACK = re.compile(r"cast|float|fp32|upcast|kbit|keep_", re.IGNORECASE)
_NORMS_BACK = re.compile(
    r"Norm[^\r\n]*(\r\n|\r|\n)?[^\r\n]*\.(float\(\)|to\((dtype=)?torch\.float)|convert_(bn|batch_?norm)|"
    r"(bn|batch_?norm)\w*_(to_)?(float|fp32)",
    re.IGNORECASE,
)


def cast_back(at: Moment[Any]) -> None:
    """Note the modules whose parameters are cast to float32 one by one, or by a function named so."""
    event = at.event
    found: set[str] = at.interpreter.facts.setdefault("cast-back", set())
    if isinstance(event, Cast):
        owner, params, _ = text(event.target).partition(".params[]")
        if params and event.dtype not in LOW:
            found.add(owner)
        return
    name = event.name if isinstance(event, OpCall) else event.module.name if isinstance(event.module, Symbol) else ""
    if _CASTS_BACK.search(name.rpartition(".")[2]):
        given = (item for _, value in event.args for item in flat(value))
        found |= {text(item) for item in given if isinstance(item, Object | Symbol)}


def plain_parts(at: Moment[Step]) -> list[Part]:
    """The half weights that this step of a stock optimizer updates, without a scaler."""
    optimizer = at.event.optimizer
    stock = optimizer.origin == "constructed" and optimizer.api.startswith("torch.optim.")
    return trained_parts(at.state, optimizer) if stock and at.event.scaler is None else []


@check("AMP402", on=(Step, Unscale, Cast, OpCall, Forward, Finished))
def half_parameters_with_scaler(at: Moment[Any]) -> Iterator[Draft]:
    if isinstance(at.event, Finished):
        yield from settled(at)
    elif isinstance(at.event, Cast | OpCall | Forward):
        cast_back(at)
    elif _refuses(at):
        message = "the parameters are float16, and the scaler refuses float16 gradients: leave the casting to autocast"
        gets = (at.event.optimizer.at, "the optimizer gets these parameters")
        for part in trained_parts(at.state, at.event.optimizer):
            if part.dtype == HALF:
                keep(at, [part], message, part.cast_at, gets, (at.event.at, "unscaling their gradients raises here"))


def _refuses(at: Moment[Step] | Moment[Unscale]) -> bool:
    """This call unscales, and raises for float16 gradients."""
    scaler, optimizer = at.event.scaler, at.event.optimizer
    if scaler is None or "Sharded" in scaler.api or "_unscale_grads_" in at.module.code:
        return False
    if not optimizer.api.startswith(_ORDINARY):
        return False
    plain = optimizer.fact("fused") in (None, FALSE, NONE) and optimizer.fact("open") is None
    return plain or isinstance(at.event, Unscale)


@check("AMP408", on=(Step, Finished))
def fused_optimizer_half_parameters(at: Moment[Any]) -> Iterator[Draft]:
    if isinstance(at.event, Finished):
        yield from settled(at)
        return
    optimizer = at.event.optimizer
    if at.event.scaler is None or optimizer.fact("fused") != TRUE or not _FUSED.match(optimizer.api):
        return
    if at.state.protocol.get(optimizer.oid).stage is Stage.UNSCALED:
        return
    message = "a fused optimizer over float16 parameters hides the scaler's error: the weights are trained in float16"
    for part in trained_parts(at.state, optimizer):
        if part.dtype == HALF:
            keep(at, [part], message, optimizer.at, (part.cast_at, "the parameters become float16 here"))


@check("AMP401", on=(Step, Finished))
def half_batchnorm(at: Moment[Any]) -> Iterator[Draft]:
    if isinstance(at.event, Finished):
        yield from settled(at)
        return
    message = "batch normalisation is cast to float16 with the trained network: its statistics stop following the data"
    for part in plain_parts(at):
        if part.dtype == HALF and has_batchnorm(part.module, at.state) and not _NORMS_BACK.search(at.module.code):
            keep(at, [part], message, part.cast_at, (at.event.optimizer.at, "the optimizer trains these weights"))


@check("AMP403", on=(Step, Finished))
def adam_eps_in_half(at: Moment[Any]) -> Iterator[Draft]:
    if isinstance(at.event, Finished):
        yield from settled(at)
        return
    optimizer = at.event.optimizer
    eps = optimizer.fact("eps") or Literal(1e-8)
    if not _EPS.search(optimizer.api) or optimizer.fact("open") is not None or not isinstance(eps, Literal):
        return
    parts = [part for part in plain_parts(at) if part.dtype == HALF]
    if parts and isinstance(eps.value, int | float) and eps.value <= _ZERO_IN_HALF:
        message = f"eps={eps.value:g} rounds to zero in float16, the dtype of this optimizer's parameters and state"
        keep(at, parts, message, optimizer.at, (parts[0].cast_at, "the parameters become float16 here"))


@check("AMP404", on=(Step, Finished))
def half_weights_without_master(at: Moment[Any]) -> Iterator[Draft]:
    if isinstance(at.event, Finished):
        yield from settled(at)
        return
    for part in plain_parts(at):
        message = f"the weights are trained in {part.dtype} without a float32 copy: small updates round away"
        keep(at, [part], message, part.cast_at, (at.event.optimizer.at, "the optimizer trains these weights"))


_IN_PLACE = ("lerp_", "mul_", "add_", "sub_")


@check("AMP404", on=OpCall)
def half_running_average(at: Moment[OpCall]) -> Iterator[Draft]:
    """The weights of a copy follow those of the trained model, a little with every step."""
    owner, params, _ = text(at.event.receiver).partition(".params[]")
    if not params or at.event.name.rpartition(".")[2] not in _IN_PLACE:
        return
    dtype, cast = at.state.heap.get((owner, "%dtype")), at.state.heap.get((owner, "%cast"))
    if isinstance(dtype, Literal) and dtype.value in LOW and isinstance(cast, Literal):
        message = f"weights are updated in place in {dtype.value} without a float32 copy: small updates round away"
        yield at.finding(message, at=cast.value, trail=[(at.event.at, "updated here")])


@check("AMP407", on=(Step, Finished))
def cast_after_optimizer(at: Moment[Any]) -> Iterator[Draft]:
    if isinstance(at.event, Finished):
        yield from settled(at)
        return
    before = at.state.heap.get((at.event.optimizer.oid, "%casts"))
    for part in plain_parts(at):
        if isinstance(before, Literal) and str(part.cast_at) not in str(before.value).split("|"):
            message = f"the module is cast to {part.dtype} after the optimizer was built: its weights change in place"
            keep(at, [part], message, part.cast_at, (at.event.optimizer.at, "the optimizer was built here"))


@check("AMP405", on=Forward)
def half_model_on_cpu(at: Moment[Forward]) -> Iterator[Draft]:
    found = modules.precision_at(at.event.module, at.state)
    device = at.state.heap.get((text(at.event.module), "%device"))
    if found is not None and found[0] == HALF and device == Literal("cpu"):
        message = "on some paths the model runs in float16 on the CPU, where float16 is slow and partly missing"
        yield at.finding(message, at=found[1], trail=[(at.event.at, "it runs here")])


@check("AMP406", on=(Cast, Finished))
def cast_not_assigned(at: Moment[Any]) -> Iterator[Draft]:
    facts = at.interpreter.facts
    if isinstance(at.event, Finished):
        cast = facts.get("cast-modules", set())
        yield from (draft for place, draft in facts.get("lost-casts", {}).items() if place not in cast)
        return
    target = at.event.target
    if at.event.used or at.event.dtype is None:
        return
    if not isinstance(target, Tensor):
        known = isinstance(target, Symbol) and modules.looks_like_module(at.interpreter, target, at.state)
        if known or modules.is_module_value(target):
            facts.setdefault("cast-modules", set()).add(at.event.at)
    elif "guessed" not in target.tags and (target.sure or not target.at):
        message = "the result of the cast is not used: a tensor is not cast in place"
        facts.setdefault("lost-casts", {})[at.event.at] = at.finding(message)


@check("AMP409", on=(Cast, OpCall, Finished))
def half_round_trip(at: Moment[Any]) -> Iterator[Draft]:
    event, facts = at.event, at.interpreter.facts
    if isinstance(event, Finished):
        if any(isinstance(each, Step | Backward | Scale) for each in event.log) or _TRAINING & at.module.words:
            back = facts.get("back", {}).items()
            reloaded = {cast_at for (cast_at, key), place in back if _reloaded(at, key, *place)}
            yield from (draft for draft in settled(at) if draft.at not in reloaded)
        return
    module = event.receiver if isinstance(event, OpCall) else event.target
    if module is None or isinstance(module, Tensor):
        return
    if isinstance(event, OpCall):
        if event.name.endswith(".load_state_dict"):
            facts.setdefault("reloaded", {}).setdefault((at.interpreter.here, text(module)), set()).add(event.at)
        return
    dtype, cast = at.state.heap.get((text(module), "%dtype")), at.state.heap.get((text(module), "%cast"))
    returns = event.dtype in ("float32", "float64") and dtype == Literal(HALF)
    if returns and isinstance(cast, Literal) and _live(at, module) and not _at_once(at, cast.value):
        message = "the live model is cast to float16 in place and back: its weights stay rounded; cast a deep copy"
        keep(at, [Part(module, HALF, cast.value, module)], message, cast.value, (event.at, "cast back here"))
        facts.setdefault("back", {})[(cast.value, text(module))] = (at.interpreter.here, event.at)


def _reloaded(at: Moment[Any], key: str, frame: int, back_at: int) -> bool:
    """After the way back the weights are loaded from a copy: nothing is lost."""
    return any(place > back_at for place in at.interpreter.facts.get("reloaded", {}).get((frame, key), ()))


def _at_once(at: Moment[Cast], cast_at: int) -> bool:
    """`model.half().float()` in one statement rounds on purpose."""
    places = at.home(cast_at).places
    return at.home(at.event.at) is at.home(cast_at) and places.statement(cast_at) == places.statement(at.event.at)


def _live(at: Moment[Cast], module: Value) -> bool:
    """Not a copy that only this function holds."""
    copied = isinstance(module, Object) and module.fact("copy") is not None
    return not copied or any(value == module for value in at.state.heap.values())
