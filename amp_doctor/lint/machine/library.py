"""Calls of library code, handed on by what is called: constructors, scalers, optimizers, containers, the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.assume import assume
from amp_doctor.lint.events import (
    Args,
    OpCall,
)
from amp_doctor.lint.machine import (
    arguments,
    builtins,
    constructors,
    containers,
    functions,
    methods,
    roles,
    training,
)
from amp_doctor.lint.objects import (
    NONE,
    TRUE,
    Api,
    Items,
    Literal,
    Object,
    Partial,
    Symbol,
    Table,
    Test,
    Value,
    flat,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.calls import Outcome
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def call_method(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Outcome:
    """A method of something that is not first-party code."""
    scaler = roles.as_scaler(m, receiver)
    if scaler is not None and name in (
        "scale",
        "unscale_",
        "step",
        "update",
        "get_scale",
        "is_enabled",
        "state_dict",
        "load_state_dict",
    ):
        if isinstance(receiver, Symbol):
            # Using it as a scaler settles that it is not None here.
            state.known = (assume(Symbol(receiver.key), True, state.known) or [state.known])[0]
        return [(training.scaler_method(m, at, scaler, name, args, state, used), state)]
    if isinstance(receiver, Object) and receiver.role == "optimizer":
        return [(training.optimizer_method(m, at, receiver, name, args, state), state)]
    if (
        isinstance(receiver, Symbol)
        and (name in ("step", "zero_grad") or apis.DOES_BACKWARD.search(name))
        and roles.role_by_use(m, receiver, state) == "optimizer"
    ):
        return [
            (
                training.optimizer_method(m, at, Object("optimizer", receiver.key, origin="used"), name, args, state),
                state,
            )
        ]
    if name in (
        "items",
        "values",
        "keys",
        "append",
        "extend",
        "insert",
        "update",
        "pop",
        "add",
        "get",
        "copy",
        "setdefault",
    ) and isinstance(receiver, Items | Table):
        return [(containers.container_method(m, receiver, name, args, state), state)]
    return methods.method(m, at, receiver, name, args, state, used)


def call_api(m: Interpreter, at: int, api: str, args: Args, state: State, used: bool) -> Outcome:
    """A library function or constructor."""
    if api in apis.SCALERS:
        return [(constructors.make_scaler(m, at, api, args, state), state)]
    if api in apis.AUTOCASTS:
        return [(constructors.make_autocast(m, at, api, args, state), state)]
    if apis.is_optimizer(api) and api != "torch.optim.Optimizer":
        return [(constructors.make_optimizer(m, at, api, args, state), state)]
    if api.startswith("builtins."):
        return builtins.builtin(m, at, api.removeprefix("builtins."), args, state)
    if api in apis.NO_GRAD or api in ("torch.enable_grad", "torch.set_grad_enabled"):
        first = arguments.argument(args, 0, "mode")
        if isinstance(first, Literal) and (first.value is False) == (api != "torch.set_grad_enabled"):
            return [(Object("mode", "torch.enable_grad", api="torch.enable_grad"), state)]
        if api == "torch.set_grad_enabled" and first is not None and re.search(r"\b(each|index)@", text(first)):
            # On in some turns of a loop only.
            return [(Object("mode", "mixed.enable_grad", api="mixed.enable_grad"), state)]
        if api == "torch.set_grad_enabled" and not (isinstance(first, Literal) and first.value is False):
            return [(Object("mode", "torch.enable_grad", api="torch.enable_grad"), state)]
        plain = arguments.positional(args)
        if plain and not isinstance(plain[0], Literal):
            return [(plain[0], state)]
        return [(Object("mode", api, api=api), state)]
    if api in apis.WRAPPERS:
        first = arguments.argument(args, 0, "module") or arguments.argument(args, None, "model")
        m.emit(OpCall(at, api, None, args, first or NONE, used), state)
        if first is None:
            return [(Api(api), state)]
        if api == "torch.compile":
            state.heap[(text(first), "%compiled")] = TRUE
        return [(first, state)]
    if api in apis.CLIPS:
        limit = arguments.argument(args, 1, "max_norm") or arguments.argument(args, None, "clip_value")
        return [(training.clip(m, at, api, arguments.argument(args, 0, "parameters"), limit, state), state)]
    if api in ("functools.partial",):
        plain = arguments.positional(args)
        if plain:
            rest = tuple((key, value) for key, value in args if key is not None)
            return [(Partial(plain[0], tuple((None, value) for value in plain[1:]) + rest), state)]
    if api in ("copy.deepcopy", "copy.copy"):
        return [(constructors.copied(m, at, arguments.argument(args, 0, "x"), state), state)]
    if apis.is_module(api):
        return [(constructors.make_module(m, at, api, args, state), state)]
    if apis.BATCHNORM_MODELS.match(api):
        return [(constructors.make_module(m, at, api, args, state), state)]
    if api == "contextlib.nullcontext":
        return [(Object("null", f"nullcontext@{at}", api=api, at=at), state)]
    if api.startswith("torch.optim.lr_scheduler.") or "lr_scheduler" in api:
        return [(Object("scheduler", f"scheduler@{at}.{m.here}", api=api, at=at), state)]
    if api == "torch.device":
        first = arguments.argument(args, 0, "type")
        if isinstance(first, Literal) and isinstance(first.value, str):
            kind = Test("eq", (Symbol(f"device({text(first)}).type"), Literal(first.value.split(":")[0])))
            state.known = (assume(kind, True, state.known) or [state.known])[0]
        return [(Object("device", f"device({text(first)})", api=api, facts=(("type", first or NONE),), at=at), state)]
    if api == "itertools.chain":
        return [(Items("list", tuple(arguments.positional(args)), False), state)]
    return functions.function(m, at, api, args, state, used)


def autocast_called(m: Interpreter, at: int, context: Object, args: Args, state: State) -> Value:
    """`autocast(...)(something)`: wraps a function; a tensor is a mistake (AMP117)."""
    first = arguments.positional(args)[0] if arguments.positional(args) else NONE
    m.emit(OpCall(at, "autocast.__call__", context, args, first, True), state)
    return Object("autocasted", f"autocasted@{at}", facts=(("context", context), ("function", first)), at=at)


def unknown_context(m: Interpreter, at: int, context: Value, state: State) -> None:
    """Entering a context of unknown make: nothing is known of regions inside it if it may be autocast."""
    if isinstance(context, Api) and context.name in apis.AUTOCASTS:
        m.emit(OpCall(at, "autocast.__enter__", context, (), NONE, True), state)
    names = {item.name for item in flat(context) if isinstance(item, Symbol)}
    m.facts.setdefault("contexts", set()).update(names)
