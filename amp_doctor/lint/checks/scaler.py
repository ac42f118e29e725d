"""AMP210, 211, 228, 235, 239: where the scaler is made and when it is on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.finding import Confidence
from amp_doctor.lint import paths
from amp_doctor.lint.checks.blame import function_of
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Construct, NoneCall, Scale, Step
from amp_doctor.lint.objects import BF16, Items, Literal, Object, Symbol, Tensor, Test, Value, dtype_of
from amp_doctor.lint.trace import Attr, Bind, Name, Seq, Unary

if TYPE_CHECKING:
    from collections.abc import Iterator


_SCALER_METHODS = frozenset({"scale", "unscale_", "step", "update"})
_SWITCHES = re.compile(r"amp|fp16|16|half|mixed|scal|precision|dtype|\?", re.IGNORECASE)


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
    if "bfloat16" not in at.module.words and not any(
        "bfloat16" in module.words for module in at.interpreter.owners.values()
    ):
        return  # only the CPU's default: there the CUDA scaler is off by itself
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
    yield from ()


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
    yield from ()


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
