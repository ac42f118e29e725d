"""AMP3: where autocast regions begin and end, and what must not happen inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Confidence
from amp_doctor.lint import apis
from amp_doctor.lint.checks.precision import Part, half_parts, keep, settled
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Args, Backward, Cast, Event, Forward, OpCall, Operation, Step
from amp_doctor.lint.machine import follow, modules
from amp_doctor.lint.machine.tensors import LOW, tensors_in
from amp_doctor.lint.objects import FP32, NONE, Code, Items, Literal, Object, Symbol, Value, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import Region, State


def explicit(at: Moment[Any]) -> Region | None:
    """The region in force, when it is written in the source and not merely believed in."""
    region = at.region()
    return None if region is None or any(each.presumed for each in at.state.regions) else region


@check("AMP301", on=Backward)
def backward_in_autocast(at: Moment[Backward]) -> Iterator[Draft]:
    region = explicit(at)
    if region is not None:
        yield at.finding("backward runs inside the autocast region", trail=[(region.at, "the region begins here")])


@check("AMP303", on=Step)
def step_in_autocast(at: Moment[Step]) -> Iterator[Draft]:
    region = explicit(at)
    if region is not None:
        yield at.finding(
            "the optimizer steps inside the autocast region", trail=[(region.at, "the region begins here")]
        )


@check("AMP312", on=OpCall)
def autocast_in_thread(at: Moment[OpCall]) -> Iterator[Draft]:
    target: Value | None = None
    args: Args = ()
    if at.event.name.endswith("threading.Thread"):
        target = at.event.arg(1, "target")
        given = at.event.arg(3, "args")
        args = tuple((None, value) for value in given.items) if isinstance(given, Items) else ()
    elif at.event.name == "Symbol.submit":
        target, args = at.event.arg(0, "fn"), at.event.args[1:]
    if isinstance(target, Code) and explicit(at) is not None and runs_model_plainly(at, target, args):
        yield at.finding(f"the thread does not inherit autocast: {target.function.name} runs its model in float32")


def runs_model_plainly(at: Moment[OpCall], code: Code, args: Args) -> bool:
    """True when the function calls a model outside every region it opens itself."""
    m, met = at.interpreter, []

    def listen(_: Interpreter, event: Event, state: State) -> None:
        if isinstance(event, Forward) and not state.regions:
            met.append(event)

    alone = at.state.copy()
    alone.regions = ()
    report, length = m.report, len(m.log)
    m.report = listen
    try:
        follow.call_code(m, at.event.at, code, args, alone)
    finally:
        m.report = report
        del m.log[length:]
    return any(_is_model(at, event.module) for event in met)


def _is_model(at: Moment[OpCall] | Moment[Forward], module: Value) -> bool:
    if isinstance(module, Symbol):
        known = at.interpreter.facts.get("modules", ())
        return (
            module.key in known
            or modules.looks_like_module(at.interpreter, module, at.state)
            or any(value == module and _of_module(owner, at.state) for (owner, _), value in at.state.heap.items())
        )
    return modules.is_module_value(module)


def _of_module(owner: str, state: State) -> bool:
    """The attributes of this object are those of a module, as far as they are known."""
    holders = [*state.env.values(), *state.heap.values()]
    return any(isinstance(each, Object) and each.oid == owner and modules.is_module_value(each) for each in holders)


@check("AMP313", on=OpCall)
def trace_with_cast_cache(at: Moment[OpCall]) -> Iterator[Draft]:
    if at.event.name not in ("torch.jit.trace", "torch.jit.trace_module"):
        return
    region = explicit(at)
    if region is not None and region.cache is not False and "set_autocast_cache_enabled" not in at.module.words:
        yield at.finding(
            "traced with the autocast cache on: pass cache_enabled=False to the region",
            trail=[(region.at, "the region begins here")],
        )


@check("AMP311", on=Forward)
def no_grad_shares_cast_cache(at: Moment[Forward]) -> Iterator[Draft]:
    if at.torch_version is not None and at.torch_version >= (2, 11):
        return
    region, module = explicit(at), at.event.module
    if region is None or region.cache is False or at.interpreter.no_grad(at.state) or not _is_model(at, module):
        return
    first = at.state.heap.get(("%cached", text(module)))
    if not isinstance(first, Literal) or _frozen(module, at.state):
        return
    # Inside a module that itself ran without gradients before, that one is reported.
    how, _, forwards = first.value
    if how != "grad" and forwards == at.interpreter.forwards():
        yield at.finding(
            "the module runs without gradients in the region that later trains it",
            at=first.value[1],
            trail=[(region.at, "one region, one cache of cast weights"), (at.event.at, "with gradients here")],
        )


def _frozen(module: Value, state: State) -> bool:
    return state.heap.get((text(module), "%frozen")) == Literal(True)


@check("AMP304", on=(Forward, Backward, Finished))
def half_model_in_autocast(at: Moment[Any]) -> Iterator[Draft]:
    halves: dict[str, tuple[Part, int]] = at.interpreter.facts.setdefault("halves", {})
    if isinstance(at.event, Finished):
        yield from settled(at)
        return
    if isinstance(at.event, Forward):
        module = at.event.module
        parts = half_parts(at.state, module, module)
        if parts and explicit(at) and not at.interpreter.no_grad(at.state):
            halves[text(module)] = (parts[0], at.event.at)
        return
    for source in at.event.sources & halves.keys():
        part, forward = halves[source]
        message = "a trained model is converted to half precision and run under autocast, which wants float32 weights"
        keep(at, [part], message, part.cast_at, (forward, "runs under autocast here"), (at.event.at, "and is trained"))


@check("AMP316", on=(Operation, OpCall))
def float_operands_in_autocast(at: Moment[Operation | OpCall]) -> Iterator[Draft]:
    """A product all of whose operands were cast to float32 for it."""
    event, region = at.event, explicit(at)
    if region is None or region.dtype not in LOW:
        return
    if isinstance(event, Operation):
        operands = tensors_in([event.left, event.right]) if event.op == "MatrixMultiply" else []
    else:
        short, given = apis.short(event.name), [value for _, value in event.args]
        operands = tensors_in([event.receiver or NONE, *given]) if short in apis.LOWER_PRECISION else []
    if len(operands) > 1 and all("upcast" in each.tags for each in operands):
        yield at.finding(
            f"autocast casts both operands all the same: in the region this product runs in {region.dtype}",
            trail=[(region.at, "the region begins here")],
            confidence=Confidence.MEDIUM,
        )


@check("AMP316", on=(Cast, Forward))
def float_layer_in_autocast(at: Moment[Cast | Forward]) -> Iterator[Draft]:
    floated: set[tuple[str, int]] = at.interpreter.facts.setdefault("floated", set())
    if isinstance(at.event, Cast):
        target = at.event.target
        halved = any(
            name == "%dtype" and isinstance(value, Literal) and value.value in LOW
            for (_, name), value in at.state.heap.items()
        )
        if (
            isinstance(target, Object)
            and apis.LOWER_MODULES.match(target.api)
            and at.event.dtype == FP32
            and not halved
        ):
            floated.add((target.oid, at.event.at))
        return
    module, region = at.event.module, explicit(at)
    if not isinstance(module, Object) or region is None or region.dtype not in LOW:
        return
    found = modules.precision_at(module, at.state)
    if found is not None and (module.oid, found[1]) in floated:
        yield at.finding(
            f"autocast casts this layer all the same: in the region it runs in {region.dtype}",
            at=found[1],
            trail=[(at.event.at, "called under autocast here")],
            confidence=Confidence.HIGH,
        )
