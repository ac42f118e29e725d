"""Scalers and optimizers among unknown objects, judged by how the file uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.objects import (
    Object,
    Symbol,
    Tensor,
    Test,
    Value,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def role_by_use(m: Interpreter, value: Symbol, state: State | None = None) -> str:
    """What an unknown object is, judged by the methods the file calls on that name (or on a variable that holds it)."""
    role = _role_of_name(m, value.name)
    if role or state is None or not value.key.startswith("call@"):
        return role
    held = [name for (_, name), known in (*state.env.items(), *state.heap.items()) if known == value]
    return next((found for name in held if (found := _role_of_name(m, name))), "")


def _role_of_name(m: Interpreter, name: str) -> str:
    if not name:
        return ""
    uses = m.module.uses.get(name, set())
    if "unscale_" in uses or {"scale", "update"} <= uses or ({"scale", "step"} <= uses):
        return "scaler"
    if (
        apis.SCALERISH.search(name)
        and not uses & {"fit", "transform", "fit_transform", "inverse_transform"}
        and uses & {"scale", "step", "update", "get_scale", "load_state_dict"}
    ):
        return "scaler"
    if "zero_grad" in uses and "step" in uses:
        return "optimizer"
    if apis.OPTIMIZERISH.search(name) and not apis.NOT_OPTIMIZER.search(name):
        return "optimizer"
    return ""


def as_scaler(m: Interpreter, value: Value) -> Object | None:
    """The value as a scaler, when it is one or is used as one."""
    if isinstance(value, Object):
        return value if value.role == "scaler" else None
    if isinstance(value, Symbol) and role_by_use(m, value) == "scaler":
        return Object(
            "scaler",
            value.key,
            api="torch.amp.GradScaler",
            facts=(("enabled", Symbol(f"{value.key}.enabled", "enabled")),),
            origin="used",
        )
    return None


def as_optimizer(value: Value | None) -> Object | None:
    """The value as an optimizer, where only an optimizer can stand."""
    if isinstance(value, Object):
        return value if value.role == "optimizer" else None
    if isinstance(value, Symbol):
        return Object("optimizer", value.key, origin="used")
    if isinstance(value, Tensor | Test):
        return Object("optimizer", f"{text(value)}:optimizer", origin="used")
    return None


def as_optimizer_by_use(m: Interpreter, value: Value | None, state: State) -> bool:
    """An unknown object that the file uses as an optimizer."""
    return isinstance(value, Symbol) and role_by_use(m, value, state) == "optimizer"
