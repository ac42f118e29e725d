"""AMP229, 230, 231, 236: the scaler's state in checkpoints and on ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.assume import decide
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, check
from amp_doctor.lint.events import Construct, OpCall, Update
from amp_doctor.lint.machine import roles
from amp_doctor.lint.objects import Object, Symbol, Table

if TYPE_CHECKING:
    from collections.abc import Iterator


_RANK = re.compile(r"rank|is_main|is_master", re.IGNORECASE)


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
        and roles.as_optimizer_by_use(at.interpreter, at.event.receiver, at.state)
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
    """This path runs on one rank only, or on all but one, because of a test around this very place."""
    m = at.interpreter
    here = [tested for (_, _, frame), tested in zip(m.guards, m.conditions, strict=True) if frame == m.here]
    return any(map(_RANK.search, here)) and any(
        (key.startswith("eq(") and key.endswith(",0)") and truth) or (not truth and key.endswith("rank()"))
        for key, truth in at.state.known.items()
        if _RANK.search(key)
    )
