"""AMP9: opt-in opinions about accumulation, schedulers, synchronisation, hardware and the compiler."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Backward, Construct, OpCall, Step
from amp_doctor.lint.objects import BF16, NONE, Literal, Object, Tensor, dtype_of
from amp_doctor.lint.paths import Site, calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.lint.trace import Function

_EVERY = re.compile(r"Modulo ([\w.]+)\)")
_ASKS_SCALE = re.compile(r"scale|skip|inf", re.IGNORECASE)
_CAPABILITY = re.compile(
    r"is_bf16_supported|get_device_capability|bf16_available|is_bfloat16_supported|compute_capability"
)


def sites(at: Moment[Any]) -> list[Site]:
    """The calls of the function that is being followed."""
    function: Function = at.interpreter.stack[-1].function
    cache = at.interpreter.facts.setdefault("sites", {})
    if id(function) not in cache:
        cache[id(function)] = list(calls(function.body))
    found: list[Site] = cache[id(function)]
    return found


def site_of(at: Moment[Any], call_at: int) -> Site | None:
    return next((site for site in sites(at) if site.leaf.at == call_at), None)


def together(one: Site, other: Site) -> bool:
    """`one` runs whenever `other` does: same innermost loop, and no condition more."""
    return one.loops == other.loops and one.tests == other.tests[: len(one.tests)]


def scaler_calls(at: Moment[Any], method: str) -> list[Site]:
    """`scaler.step(...)` and the like in this function: of receivers that also scale or update here."""
    scalers = {site.receiver for site in sites(at) if site.method in ("scale", "unscale_", "update")}
    return [site for site in sites(at) if site.method == method and site.receiver in scalers]


@check("AMP901", on=Step)
def accumulated_loss_not_divided(at: Moment[Step]) -> Iterator[Draft]:
    step = site_of(at, at.event.at)
    every = (
        next(
            (
                match[1]
                for test in reversed(step.tests)
                if not test.startswith("not ") and (match := _EVERY.search(test))
            ),
            None,
        )
        if step
        else None
    )
    if step is None or every is None:
        return
    for site in sites(at):
        if (
            site.method != "backward"
            or not together(site, step)
            or len(site.tests) >= len(step.tests)
            or _divided(at, site, every)
        ):
            continue
        message = f"gradients are added up over {every} batches, and the loss is never divided by that number"
        yield at.finding(message, at=site.leaf.at, trail=[(at.event.at, "stepped only then")])


def _divided(at: Moment[Step], backward: Site, every: str) -> bool:
    """The loss is divided by the number of batches, or by anything where it is made."""
    name = re.escape(every.rpartition(".")[2])
    code = at.home(backward.leaf.at).code
    return bool(re.search(rf"/=?\s*(\w+\.)*{name}\b|\bdiv_?\([^)]*{name}|loss\w*[^\n]*/|backward[^\n]*/", code))


@check("AMP902", on=OpCall)
def scheduler_after_skipped_step(at: Moment[OpCall]) -> Iterator[Draft]:
    scheduler = at.event.receiver
    if at.event.name != "scheduler.step" or not isinstance(scheduler, Object):
        return
    here, steps = site_of(at, at.event.at), scaler_calls(at, "step")
    names = {step.argument() for step in steps}
    if here is None or len(names) != 1 or _ASKS_SCALE.search("".join(here.tests).replace("scaler", "")):
        return
    step = next((step for step in steps if step.leaf.at < here.leaf.at and together(here, step)), None)
    if step is not None:
        yield at.finding(
            "the scheduler moves on even when the scaler skipped the step of the optimizer",
            trail=[(step.leaf.at, "this step may be skipped")],
        )


@check("AMP903", on=OpCall)
def get_scale_every_step(at: Moment[OpCall]) -> Iterator[Draft]:
    if (
        at.event.name != "GradScaler.get_scale"
        or not isinstance(at.event.receiver, Object)
        or at.enabled(at.event.receiver) is False
    ):
        return
    here = site_of(at, at.event.at)
    if here is None or not any(together(here, step) for step in scaler_calls(at, "step")) or _needed(at, here):
        return
    yield at.finding("get_scale() with every batch makes the program wait for the GPU")


def _needed(at: Moment[OpCall], here: Site) -> bool:
    """The number is compared around update(), or gradients are divided by it."""
    statement = at.text(at.home(here.leaf.at).places.statement(here.leaf.at))
    call = re.escape(at.text(here.leaf.at))
    bound = re.match(rf"\s*([\w.]+)\s*=\s*{call}\s*$", statement)
    code = (
        at.text(at.interpreter.stack[-1].function.at)
        if at.interpreter.stack[-1].function.name != "<module>"
        else at.module.code
    )
    used = rf"(?<![\w.]){re.escape(bound[1])}(?![\w.])" if bound else call
    return bool(re.search(rf"([<>]=?|[!=]=|/=?|\*)\s*{used}|{used}\s*([<>]|[!=]=|/|\*)", code))


@check("AMP904", on=(Construct, Finished))
def bfloat16_without_check(at: Moment[Any]) -> Iterator[Draft]:
    fixed: dict[int, list[Draft | None]] = at.interpreter.facts.setdefault("bfloat16", {})
    if isinstance(at.event, Finished):
        if not _CAPABILITY.search(at.module.code):
            yield from (drafts[0] for drafts in fixed.values() if drafts[0] is not None and None not in drafts)
        return
    context = at.event.object
    if context.role != "autocast" or context.fact("device") != Literal("cuda"):
        return
    given = context.fact("given")
    if given is not None and (dtype_of(given) or given == NONE):
        # Another dtype on another path: somebody chooses, and may choose by what the GPU can do.
        message = "bfloat16 autocast on CUDA without a check that the GPU supports it"
        fixed.setdefault(at.event.at, []).append(at.finding(message) if dtype_of(given) == BF16 else None)


@check("AMP905", on=Backward)
def compile_with_outside_backward(at: Moment[Backward]) -> Iterator[Draft]:
    tensor = at.event.tensor
    compiled = isinstance(tensor, Tensor) and "compiled" in tensor.tags
    if compiled and at.region() is None and "backward_pass_autocast" not in at.module.words:
        yield at.finding("backward of a compiled model outside its autocast region")
