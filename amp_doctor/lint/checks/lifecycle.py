"""AMP2, the scaler's life: where it is made, when it is on, how it is saved, and what gradients ignore it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Confidence
from amp_doctor.lint import library, paths
from amp_doctor.lint.assume import decide
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.checks.scaling import function_of
from amp_doctor.lint.events import Backward, Construct, NoneCall, OpCall, Scale, Step, Update
from amp_doctor.lint.objects import BF16, Items, Literal, Object, Symbol, Table, Tensor, Test, Value, dtype_of
from amp_doctor.lint.trace import Attr, Bind, ClassDef, Const, Display, Exit, Function, Name, Seq, Stmt, Unary
from amp_doctor.lint.typestate import Grads

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCALER_METHODS = frozenset({"scale", "unscale_", "step", "update"})
_SWITCHES = re.compile(r"amp|fp16|16|half|mixed|scal|precision|dtype|\?", re.IGNORECASE)
_RANK = re.compile(r"rank|is_main|is_master", re.IGNORECASE)


# --- making it -----------------------------------------------------------------------------------


@check("AMP210", on=Scale)
def scaler_with_bfloat16(at: Moment[Scale]) -> Iterator[Draft]:
    operands = [
        value
        for value in (at.event.operand.items if isinstance(at.event.operand, Items) else (at.event.operand,))
        if isinstance(value, Tensor)
    ]
    scaler = at.event.scaler
    if not operands or not scaler.at or not at.event.sure:
        return
    if all("bf16" in tensor.tags and "fp16" not in tensor.tags for tensor in operands):
        yield at.finding(
            "the scaler is enabled although autocast runs in bfloat16, which needs no loss scaling",
            at=scaler.at,
            trail=[(at.event.at, "a loss computed in bfloat16 is scaled here")],
        )


@check("AMP211", on=Step)
def scaler_recreated(at: Moment[Step]) -> Iterator[Draft]:
    scaler = at.event.scaler
    before = at.state.protocol.get(at.event.optimizer.oid)
    if scaler is not None and before.orphaned and before.scaler == scaler.oid and scaler.at:
        yield at.finding(
            "a new scaler replaces the one that was in use: its scale and growth counter start again",
            at=scaler.at,
            trail=[(before.step_at, "the last one stepped this optimizer"), (at.event.at, "the new one steps it here")],
        )


@check("AMP211", on=Step)
def scaler_made_per_step(at: Moment[Step]) -> Iterator[Draft]:
    scaler = at.event.scaler
    function = function_of(at)
    if (
        scaler is None
        or not scaler.at
        or (at.event.optimizer.origin == "constructed" and not _attribute(at, at.event.optimizer))
    ):
        return
    if function.owner is None or (
        function.name.startswith(("test", "main", "run", "fit", "train_")) and "loader" in function.words
    ):
        return
    sites = {site.leaf.at: site for site in paths.calls(function.body)}
    made, stepped = sites.get(scaler.at), sites.get(at.event.at)
    if made is not None and stepped is not None and not made.loops and not stepped.loops:
        yield at.finding(
            "a new scaler is made on every call of this method, which does one step: its scale never adapts",
            at=scaler.at,
            trail=[(at.event.at, "it lives for this one step")],
        )


def _attribute(at: Moment[Step], optimizer: Object) -> bool:
    """The optimizer outlives the call: it is held by the object whose method this is."""
    return any(value == optimizer and owner.startswith("self:") for (owner, _), value in at.state.heap.items())


@check("AMP228", on=Finished)
def different_enabled_flags(at: Moment[Finished]) -> Iterator[Draft]:
    flags: dict[str, Symbol] = {}
    for event in at.event.log:
        if isinstance(event, Construct) and event.object.role == "autocast":
            enabled = event.object.fact("enabled")
            if not isinstance(enabled, Symbol):
                return  # some region has no flag of its own, or a computed one
            flags[enabled.key] = enabled
    if len(flags) != 1:
        return
    region = next(iter(flags.values()))
    for event in at.event.log:
        if isinstance(event, Construct) and event.object.role == "scaler":
            enabled = event.object.fact("enabled")
            if isinstance(enabled, Symbol) and _sisters(enabled, region) and not re.search(r"16|half", enabled.name):
                yield at.finding(
                    "scaler and autocast are switched by different flags",
                    at=event.object.at,
                    trail=[(event.object.at, f"the scaler follows `{enabled.name}`, autocast follows `{region.name}`")],
                )


def _sisters(one: Symbol, other: Symbol) -> bool:
    """Two flags side by side: parameters of one call, or attributes of one object; neither computed."""
    if one.key == other.key:
        return False
    if "." in one.key and "." in other.key:
        (base, _, first), (same, _, second) = one.key.rpartition("."), other.key.rpartition(".")
        return base == same and first.isidentifier() and second.isidentifier()
    if any(mark in one.key + other.key for mark in "(@:["):
        return False
    return "." not in one.key + other.key and one.key.rpartition("~")[2] == other.key.rpartition("~")[2]


@check("AMP210", on=Construct)
def enabled_for_bfloat16(at: Moment[Construct]) -> Iterator[Draft]:
    enabled = at.event.object.fact("enabled")
    if at.event.object.role == "scaler" and at.decide(enabled) is None and _asks_for_bfloat16(enabled):
        yield at.finding("the scaler is enabled for bfloat16 too, which needs no loss scaling")


def _asks_for_bfloat16(value: Value | None) -> bool:
    """One alternative of the condition is bfloat16: `dtype in ("float16", "bfloat16")`, `fp16 or bf16`."""
    match value:
        case Test("or", parts):
            return any(_asks_for_bfloat16(part) for part in parts)
        case Test("eq", parts):
            return any(
                dtype_of(part) == BF16 or (isinstance(part, Literal) and part.value in ("bfloat16", "bf16"))
                for part in parts
            )
        case Symbol(_, name):
            return re.fullmatch(r"(use_|enable_|is_)?(bf16|bfloat16)(_amp)?", name) is not None
        case _:
            return False


@check("AMP123", on=Construct)
def inverted_switch(at: Moment[Construct]) -> Iterator[Draft]:
    """`autocast(enabled=not use_amp)`."""
    enabled = at.event.object.fact("enabled") if at.event.object.role == "autocast" else None
    flag = enabled.parts[0] if isinstance(enabled, Test) and enabled.op == "not" else None
    if isinstance(flag, Symbol) and _ON.fullmatch(flag.name.lower()):
        yield at.finding(f"autocast is entered only when {flag.name} is false", confidence=Confidence.MEDIUM)


@check("AMP123", on=Finished)
def inverted_choice(at: Moment[Finished]) -> Iterator[Draft]:
    """The class of autocast, to be called later, chosen where the flag is off."""
    for body in (at.module.body, *(function.body for function in at.module.functions)):
        for branch in paths.branches(body):
            test, then, other = branch.test, _chosen(branch.then), _chosen(branch.other)
            if isinstance(test, Unary) and test.op == "Not":
                test, then, other = test.operand, other, then
            flag = paths.written(test).rpartition(".")[2]
            if then in ("nullcontext", "suppress") and other == "autocast" and _ON.fullmatch(flag.lower()):
                yield at.finding(
                    f"autocast is entered only when {flag} is false", at=branch.at, confidence=Confidence.MEDIUM
                )


def _chosen(arm: Seq) -> str:
    """The name that an arm of a conditional expression stands for, when it only names something."""
    last = arm.items[-1] if len(arm.items) == 1 else None
    value = last.value if isinstance(last, Bind) else None
    return paths.written(value).rpartition(".")[2] if isinstance(value, Name | Attr) else ""


_ON = re.compile(
    r"((use|with|enable|do|is|run)_)?(native_|torch_|cuda_)?(amp|autocast|mixed_precision|fp16)(_enabled|_on)?"
)


@check("AMP239", on=Scale)
def scaler_without_autocast(at: Moment[Scale]) -> Iterator[Draft]:
    tensor, scaler = at.event.operand, at.event.scaler
    if not isinstance(tensor, Tensor) or not scaler.at or not at.event.sure or tensor.tags & {"fp16", "bf16"}:
        return
    off = [tag for tag in tensor.tags if tag.startswith("off@")]
    if len(off) == 1:
        draft = at.finding(
            "the scaler is enabled on a path where autocast is off",
            at=scaler.at,
            trail=[(int(off[0][4:]), "no autocast here on this path"), (at.event.at, "yet the loss is scaled")],
            confidence=Confidence.MEDIUM,
        )
        at.interpreter.facts.setdefault("off", []).append((off[0], draft))
    return
    yield


@check("AMP239", on=Finished)
def scaler_without_autocast_end(at: Moment[Finished]) -> Iterator[Draft]:
    for tag, draft in at.interpreter.facts.get("off", []):
        # A null context counts only where another path enters autocast: others have other reasons.
        if at.interpreter.facts.get(f"with:{tag[4:]}", set()) & {"autocast", "off"}:
            yield draft


@check("AMP235", on=Construct)
def remember_creation(at: Moment[Construct]) -> Iterator[Draft]:
    if at.event.object.role == "scaler" and at.event.object.fact("enabled") is not None:
        at.interpreter.facts.setdefault("created", []).append(dict(at.state.known))
    return
    yield


@check("AMP235", on=NoneCall)
def scaler_may_be_none(at: Moment[NoneCall]) -> Iterator[Draft]:
    if at.event.name not in _SCALER_METHODS or not at.interpreter.facts.get("created"):
        return
    here = at.interpreter.here
    guards = [paths.written(test) for _, test, frame in at.interpreter.guards if frame == here]
    guarded = bool(guards) and not (_tested_elsewhere(at) and not any(_SWITCHES.search(guard) for guard in guards))
    known = at.state.known
    for created in at.interpreter.facts["created"]:
        differ = [
            key for key, truth in created.items() if known.get(key) is (not truth) and not key.startswith("none(")
        ]
        shared = [key for key, truth in created.items() if known.get(key) is truth and truth]
        if differ and (not guarded or shared):
            yield at.finding(
                "the scaler may be None here: it is only made under a condition that this path does not meet",
                confidence=Confidence.MEDIUM,
            )
            return


def _tested_elsewhere(at: Moment[NoneCall]) -> bool:
    """This function asks about the scaler in other places: it knows that there may be none."""
    sites = list(paths.calls(function_of(at).body))
    here = next((site for site in sites if site.leaf.at == at.event.at), None)
    if here is None or not here.receiver:
        return False
    pattern = re.compile(rf"(?<![\w.]){re.escape(here.receiver)}(?![\w.])")
    return any(pattern.search(test) for site in sites if site is not here for test in site.tests)


# --- saving and loading --------------------------------------------------------------------------


@check("AMP229", on=OpCall)
def scaler_state_not_saved(at: Moment[OpCall]) -> Iterator[Draft]:
    facts = at.interpreter.facts
    if at.event.name == "torch.save":
        table = next((value for _, value in at.event.args if isinstance(value, Table)), None)
        held = [value for _, value in (at.event.args[:1] if table is None else table.pairs)]
        states = [value.fact("of") for value in held if isinstance(value, Object) and value.role == "state"]
        kinds = {of.role for of in states if isinstance(of, Object)}
        if "optimizer" in kinds and "scaler" not in kinds and not _certainly_off(at):
            facts.setdefault("unsaved", {})[at.event.at] = at.finding(
                "the checkpoint has the state of the optimizer but not the state of the scaler",
                trail=[(table.at, "made here")] if table is not None else [],
            )
        else:
            facts.setdefault("complete", set()).add(at.event.at)
    elif at.event.name == "Optimizer.load_state_dict" or (
        at.event.name == "Symbol.load_state_dict"
        and library.as_optimizer_by_use(at.interpreter, at.event.receiver, at.state)
    ):
        facts.setdefault("loaded", set()).update(_blobs(at))
        facts.setdefault("restored", {})[at.event.at] = at.finding(
            "the optimizer is restored but not the state of the scaler"
        )
    elif at.event.name == "GradScaler.load_state_dict" and _blobs(at) & facts.get("loaded", set()):
        yield at.finding("the scaler is given the state of the optimizer, not the state of the scaler")


def _certainly_off(at: Moment[OpCall]) -> bool:
    """This path has a scaler that its own constants switch off: its state would be empty."""
    held = (*at.state.env.values(), *at.state.heap.values())
    switches = [value.fact("enabled") for value in held if isinstance(value, Object) and value.role == "scaler"]
    return any(switch is not None and decide(switch, {}) is False for switch in switches)


def _blobs(at: Moment[OpCall]) -> set[str]:
    """The entry of a checkpoint that is loaded: `checkpoint["optimizer"]`."""
    return {value.key for _, value in at.event.args if isinstance(value, Symbol) and value.key.endswith("]")}


@check("AMP229", on=Finished)
def scaler_state_not_saved_end(at: Moment[Finished]) -> Iterator[Draft]:
    facts = at.interpreter.facts
    saved = loaded = scaling = False
    for event in at.event.log:
        if isinstance(event, OpCall) and event.name == "GradScaler.state_dict":
            saved = True
        elif isinstance(event, OpCall) and event.name == "GradScaler.load_state_dict":
            loaded = True
        elif isinstance(event, Construct) and event.object.role == "scaler":
            scaling = True
    uses = at.module.uses
    saved = saved or any("scaler" in name and "state_dict" in methods for name, methods in uses.items())
    loaded = loaded or any("scaler" in name and "load_state_dict" in methods for name, methods in uses.items())
    if not scaling or loaded:
        return
    if saved or facts.get("unsaved"):
        yield from facts.get("restored", {}).values()
    if not saved:
        yield from (
            draft for place, draft in facts.get("unsaved", {}).items() if place not in facts.get("complete", ())
        )


@check("AMP230", on=OpCall)
def empty_scaler_state(at: Moment[OpCall]) -> Iterator[Draft]:
    scaler = at.event.receiver
    if (
        at.event.name != "GradScaler.load_state_dict"
        or not isinstance(scaler, Object)
        or scaler.origin != "constructed"
    ):
        return
    here = at.interpreter.here
    if at.enabled(scaler) is None and not any(frame == here for _, _, frame in at.interpreter.guards):
        yield at.finding("the loaded state may be empty: a disabled scaler saves {}, which an enabled one refuses")


@check("AMP231", on=OpCall)
def scaler_saved_mid_step(at: Moment[OpCall]) -> Iterator[Draft]:
    name = at.event.name
    if name == "GradScaler.state_dict":
        scaler = at.event.receiver
    elif name.startswith("pickle."):
        scaler = next(
            (value for _, value in at.event.args if isinstance(value, Object) and value.role == "scaler"), None
        )
    else:
        return
    if isinstance(scaler, Object):
        used = at.state.protocol.pending(scaler.oid)
        if used:
            yield at.finding(
                "the scaler is saved before update(): its state is that of a step in progress",
                trail=[(used, "used here")],
            )


@check("AMP236", on=Construct)
def scale_depends_on_rank(at: Moment[Construct]) -> Iterator[Draft]:
    scale = next((value for key, value in at.event.args if key == "init_scale"), None)
    if at.event.object.role == "scaler" and isinstance(scale, Symbol) and _RANK.search(scale.key):
        yield at.finding(
            "every rank starts with another scale: ranks then scale differently and DDP averages the mixture"
        )


@check("AMP236", on=(Update, OpCall, Finished))
def scaler_of_one_rank(at: Moment[Any]) -> Iterator[Draft]:
    reached: dict[int, list[Draft | None]] = at.interpreter.facts.setdefault("ranks", {})
    if isinstance(at.event, Finished):
        # Another path may have asked for the rank before, about something else.
        yield from (drafts[0] for drafts in reached.values() if drafts[0] is not None and None not in drafts)
        return
    restored = isinstance(at.event, OpCall)
    if restored and at.event.name != "GradScaler.load_state_dict":
        return
    draft = at.finding(
        f"the {'scaler is restored' if restored else 'scale is updated'} on one rank only: "
        "ranks then scale differently and DDP averages the mixture"
    )
    reached.setdefault(at.event.at, []).append(draft if _one_rank(at) else None)


def _one_rank(at: Moment[Any]) -> bool:
    """This path runs on one rank only, or on all but one."""
    return any(
        (key.startswith("eq(") and key.endswith(",0)") and truth) or (not truth and key.endswith("rank()"))
        for key, truth in at.state.known.items()
        if _RANK.search(key)
    )


# --- gradients that ignore the scale -------------------------------------------------------------


@check("AMP223", on=OpCall)
def remember_gradient(at: Moment[OpCall]) -> Iterator[Draft]:
    if at.event.name == "torch.autograd.grad":
        create = at.event.arg(4, "create_graph")
        if isinstance(create, Literal) and create.value is True:
            at.interpreter.facts["penalty"] = at.event.at
    return
    yield


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


# --- shapes of code ------------------------------------------------------------------------------


@check("AMP225", on=Finished)
def partial_accumulation_guard(at: Moment[Finished]) -> Iterator[Draft]:
    if "zero_grad" not in at.module.words:
        return
    for function in (*at.module.functions, Function(0, "<module>", (), at.module.body)):
        sites = list(paths.calls(function.body))
        scalers = {site.receiver for site in sites if site.method in ("scale", "update", "unscale_")}
        steps = [site for site in sites if site.method == "step" and site.receiver in scalers]
        for step in steps:
            for zero in (
                site
                for site in sites
                if site.method == "zero_grad"
                and site.receiver == step.argument()
                and site.loops == step.loops
                and step.loops
            ):
                alone = len([site for site in sites if site.method == "zero_grad"]) == 1 and len(steps) == 1
                if alone and _counts(step.tests) != _counts(zero.tests) and not _nested(step, sites):
                    yield at.finding(
                        "step and zero_grad do not share the accumulation guard: gradients are lost or kept by mistake",
                        at=zero.leaf.at,
                        trail=[(step.leaf.at, "stepped here")],
                    )


def _nested(step: paths.Site, sites: list[paths.Site]) -> bool:
    """The backward runs in a deeper loop of its own: the guard is that loop."""
    return any(site.method == "backward" and len(site.loops) > len(step.loops) for site in sites)


def _counts(tests: tuple[str, ...]) -> bool:
    return any("Modulo" in test and not test.startswith("not ") for test in tests)


@check("AMP238", on=Finished)
def custom_backward_ignores_gradient(at: Moment[Finished]) -> Iterator[Draft]:
    if not any(
        isinstance(event, Scale | Construct) and (isinstance(event, Scale) or event.object.role == "scaler")
        for event in at.event.log
    ):
        return
    for definition in at.module.classes:
        backward = definition.methods.get("backward")
        if backward is None or not _is_function(definition) or len(backward.params) < 2:
            continue
        gradients = [param.name for param in backward.params[1:]]
        if any(paths.loads(backward.body, name) for name in gradients):
            continue
        for leaf in _returns(backward.body):
            if _something(leaf):
                yield at.finding(
                    "the incoming gradient, which carries the loss scale, is not used: this gradient is unscaled",
                    at=leaf.at,
                    confidence=Confidence.MEDIUM,
                )


def _is_function(definition: ClassDef) -> bool:
    return any(isinstance(base, Attr | Name) and paths.written(base).endswith("Function") for base in definition.bases)


def _returns(body: Seq) -> Iterator[Exit]:
    for item in body.items:
        if isinstance(item, Stmt):
            yield from _returns(item.body)
        elif isinstance(item, Exit) and item.kind == "return":
            yield item


def _something(leaf: Exit) -> bool:
    """The return hands back more than None."""
    parts = leaf.value.items if isinstance(leaf.value, Display) else (leaf.value,)
    return any(part is not None and not (isinstance(part, Const) and part.value is None) for part in parts)


@check("AMP242", on=Finished)
def grad_scaler_keyword(at: Moment[Finished]) -> Iterator[Draft]:
    for definition in at.module.classes:
        step = definition.methods.get("step")
        names = {
            paths.written(item.target)
            for statement in definition.body.items
            if isinstance(statement, Stmt)
            for item in statement.body.items
            if hasattr(item, "target")
        }
        if step is None or "_step_supports_amp_scaling" not in names:
            continue
        for param in step.params:
            if param.name == "grad_scaler":
                yield at.finding(
                    "the grad_scaler keyword of step() is deprecated: read grad_scale and found_inf from the optimizer",
                    at=param.at,
                )
