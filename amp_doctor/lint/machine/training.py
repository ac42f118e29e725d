"""Scalers, optimizers, losses: what scale, backward, unscale_, clip, step, update and casts do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.assume import assume, decide
from amp_doctor.lint.events import (
    Args,
    Backward,
    Cast,
    Clip,
    OpCall,
    Scale,
    Step,
    Unscale,
    Update,
)
from amp_doctor.lint.machine import arguments, modules, roles
from amp_doctor.lint.machine.ownership import appear, modules_of, owners_of, reached_by
from amp_doctor.lint.objects import (
    FP32,
    HALF,
    NONE,
    TRUE,
    Items,
    Literal,
    Object,
    Symbol,
    Tensor,
    Value,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def scaler_method(m: Interpreter, at: int, scaler: Object, name: str, args: Args, state: State, used: bool) -> Value:
    """Call a method of a scaler; one that is off passes everything through."""
    operand = arguments.argument(args, 0, {"scale": "outputs", "update": "new_scale"}.get(name, "optimizer"))
    if name == "is_enabled":
        return scaler.fact("enabled") or TRUE
    if name == "get_scale":
        m.emit(OpCall(at, "GradScaler.get_scale", scaler, args, NONE, used), state)
        return Object("scale", f"{scaler.oid}.scale", facts=(("of", Literal(scaler.oid)),), at=at)
    if name in ("state_dict", "load_state_dict"):
        m.emit(OpCall(at, f"GradScaler.{name}", scaler, args, NONE, used), state)
        return Object("state", f"{scaler.oid}.state", facts=(("of", scaler),), at=at)
    enabled = scaler.fact("enabled") or TRUE
    if decide(enabled, state.known) is False:
        # A disabled scaler passes everything through (torch/amp/grad_scaler.py).
        if name == "scale" and operand is not None:
            return operand
        if name == "step":
            return step(m, at, operand, None, args, state)
        return NONE
    sure = decide(enabled, state.known) is True
    if not sure:
        # What is wrong with an enabled scaler is what matters; the disabled path is right by construction.
        state.known = (assume(enabled, True, state.known) or [state.known])[0]
    if name == "scale":
        m.emit(Scale(at, scaler, operand or NONE, used, sure), state)
        return scaled(operand, scaler.oid, at)
    if name == "step":
        return step(m, at, operand, scaler, args, state)
    if name == "unscale_":
        optimizer = roles.as_optimizer(operand)
        if optimizer is not None:
            appear(state, optimizer)
            m.emit(Unscale(at, scaler, optimizer), state)
            state.protocol = state.protocol.unscale(scaler.oid, optimizer.oid, at)
        return NONE
    m.emit(Update(at, scaler, operand), state)
    state.protocol = state.protocol.update(scaler.oid, at)
    for store in (state.env, state.heap):
        for key, value in store.items():
            if isinstance(value, Tensor) and value.scaled == scaler.oid:
                store[key] = value.tagged("outdated")  # type: ignore[index]
    return NONE


def scaled(operand: Value | None, oid: str, at: int) -> Value:
    """What `scaler.scale` returns: the same tensors, with its scale."""
    match operand:
        case Tensor():
            return replace(operand, scaled=oid, at=at)
        case Items(kind, items, exact):
            return Items(kind, tuple(scaled(item, oid, at) for item in items), exact)
        case _:
            return Tensor(None, False, oid, frozenset(), frozenset({"loss"}), at)


def step(m: Interpreter, at: int, operand: Value | None, scaler: Object | None, args: Args, state: State) -> Value:
    """`scaler.step(optimizer)`, or the plain step when the scaler is off or None."""
    optimizer = roles.as_optimizer(operand)
    if optimizer is None:
        return NONE
    appear(state, optimizer)
    closure = arguments.argument(args, 1, "closure")
    m.emit(Step(at, optimizer, scaler, closure), state)
    state.protocol = state.protocol.step(scaler.oid if scaler else None, optimizer.oid, at)
    return NONE


def optimizer_method(m: Interpreter, at: int, optimizer: Object, name: str, args: Args, state: State) -> Value:
    """Call a method of an optimizer."""
    appear(state, optimizer)
    if name == "step":
        closure = arguments.argument(args, 0, "closure")
        m.emit(Step(at, optimizer, None, closure), state)
        state.protocol = state.protocol.step(None, optimizer.oid, at)
        return NONE
    if name == "zero_grad":
        state.protocol = state.protocol.zeroed((optimizer.oid,))
        return NONE
    m.emit(OpCall(at, f"Optimizer.{name}", optimizer, args, NONE, True), state)
    if name in ("state_dict", "load_state_dict"):
        return Object("state", f"{optimizer.oid}.state", facts=(("of", optimizer),), at=at)
    if name == "add_param_group":
        old = state.heap.get((optimizer.oid, "%modules"))
        more = modules_of(arguments.argument(args, 0, "param_group"))
        if isinstance(old, Literal):
            state.heap[(optimizer.oid, "%modules")] = Literal("|".join(sorted({*str(old.value).split("|"), *more})))
        return NONE
    if name in ("train", "eval"):
        return NONE
    if apis.DOES_BACKWARD.search(name):
        state.protocol = state.protocol.touched(optimizer.oid)
    return arguments.opaque(m, at, args, state, name)


def backward(m: Interpreter, at: int, tensor: Value, state: State) -> Value:
    """`tensor.backward()`."""
    scaled_by = tensor.scaled if isinstance(tensor, Tensor) else None
    sources = tensor.sources if isinstance(tensor, Tensor) else frozenset()
    m.emit(Backward(at, tensor, scaled_by, sources), state)
    if isinstance(tensor, Tensor) and tensor.tags & {"rescaled", "unseen"} and scaled_by is None:
        state.protocol = state.protocol.unknown()
        return NONE
    state.protocol = state.protocol.backward(scaled_by, reached_by(state, sources), at)
    return NONE


def clip(m: Interpreter, at: int, api: str, params: Value | None, limit: Value | None, state: State) -> Value:
    """Clip gradients; the result is their norm."""
    owners = owners_of(state, params) if params is not None else ()
    m.emit(Clip(at, api, params or NONE, owners, limit), state)
    return Tensor(FP32, True, None, frozenset(), frozenset({"norm"}), at)


_MAKES_MODELS = re.compile(
    r"(^|_)(create|build|get|load|make|init)_(\w+_)?(model|net|network|unet|vae|encoder|backbone|transformer)$|^from_pretrained$"
)


def cast(m: Interpreter, at: int, target: Value, dtype: str | None, how: str, state: State, used: bool) -> Value:
    """A module cast changes it in place; a tensor cast makes a new tensor."""
    m.emit(Cast(at, target, dtype, how, used), state)
    if isinstance(target, Tensor):
        tags = target.tags - {"output", "contraction", "upcast"} | ({"upcast"} if dtype == FP32 else set())
        if (
            dtype == HALF
            and target.dtype != HALF
            and target.sources
            and "detached" not in tags
            and not m.no_grad(state)
        ):
            tags |= {f"cast@{at}"}
        return replace(target, dtype=dtype, sure=True, at=at, tags=tags) if dtype else target
    if isinstance(target, Object | Symbol) and dtype is not None:
        if isinstance(target, Object):
            if modules.is_module_value(target):
                for child in modules.descendants(target, state):
                    state.heap.pop((text(child), "%dtype"), None)
                modules.set_precision(target, dtype, at, state)
            return target
        if (
            target.key in m.facts.get("modules", ())
            or _MAKES_MODELS.search(target.name)
            or modules.looks_like_module(m, target, state)
        ):
            modules.set_precision(target, dtype, at, state)
            return target
        known = frozenset({"guessed", "upcast"} if dtype == FP32 else {"guessed"})
        return Tensor(dtype, True, None, frozenset(), known, at)
    return target
