"""Objects made by known constructors: scalers, autocast objects, optimizers, modules, and deep copies of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.events import (
    Args,
    Construct,
)
from amp_doctor.lint.machine import arguments, modules
from amp_doctor.lint.machine.ownership import modules_of
from amp_doctor.lint.objects import (
    NONE,
    TRUE,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
    Value,
    dtype_of,
    flat,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def make_scaler(m: Interpreter, at: int, api: str, args: Args, state: State) -> Object:
    """A GradScaler, and what its switch is."""
    position, device_first = apis.SCALERS[api]
    enabled = arguments.argument(args, position, "enabled") or TRUE
    device = arguments.argument(args, 0, "device") if device_first else None
    if any(key in ("*", "**") for key, _ in args):
        enabled = arguments.argument(args, None, "enabled") or Symbol(f"enabled@{at}", "enabled")
    scaler = Object(
        "scaler", f"scaler@{at}.{m.here}", api=api, at=at, facts=(("device", device or NONE), ("enabled", enabled))
    )
    m.emit(Construct(at, scaler, args), state)
    state.protocol = state.protocol.recreated(scaler.oid)
    return scaler


def make_autocast(m: Interpreter, at: int, api: str, args: Args, state: State) -> Object:
    """An autocast object: device, dtype and switch, as far as they are told."""
    device, order = apis.AUTOCASTS[api]
    values = {name: arguments.argument(args, position, name) for position, name in enumerate(order)}
    kind = values.get("device_type")
    if device is None and isinstance(kind, Literal) and isinstance(kind.value, str):
        device = kind.value.split(":")[0]
    dtype: str | None
    given = values.get("dtype")
    if given is None or (isinstance(given, Literal) and given.value is None):
        dtype = apis.DEFAULT_DTYPE.get(device) if device else None
    else:
        dtype = dtype_of(given)
    enabled = values.get("enabled") or TRUE
    if any(key in ("*", "**") for key, _ in args):
        dtype = dtype if given is not None else None
        enabled = values.get("enabled") or Symbol(f"enabled@{at}", "enabled")
    cache = values.get("cache_enabled")
    facts: tuple[tuple[str, Value], ...] = (
        ("cache", cache or NONE),
        ("device", Literal(device)),
        ("dtype", Literal(dtype)),
        ("enabled", enabled),
        ("given", given or NONE),
        ("kind", kind or NONE),
    )
    context = Object("autocast", f"autocast@{at}.{m.here}", api=api, facts=facts, at=at)
    m.emit(Construct(at, context, args), state)
    return context


def make_optimizer(m: Interpreter, at: int, api: str, args: Args, state: State) -> Object:
    """An optimizer, with the modules whose parameters it owns and the casts that were made before."""
    params = arguments.argument(args, 0, "params")
    facts: tuple[tuple[str, Value], ...] = tuple(
        (name, value) for name, value in args if name is not None and name in ("eps", "fused", "lr")
    )
    if any(key == "**" for key, _ in args):
        facts = (*facts, ("open", TRUE))
    optimizer = Object(
        "optimizer",
        f"optimizer@{at}.{m.here}",
        api=api,
        at=at,
        facts=tuple(sorted(facts, key=lambda pair: pair[0])),
    )
    modules = modules_of(params)
    state.heap[(optimizer.oid, "%modules")] = Literal("|".join(sorted(modules)))
    casts = {
        str(value.value) for (_, name), value in state.heap.items() if name == "%cast" and isinstance(value, Literal)
    }
    state.heap[(optimizer.oid, "%casts")] = Literal("|".join(sorted(casts)))
    if params is not None:
        state.heap[(optimizer.oid, "%params")] = params
    m.emit(Construct(at, optimizer, args), state)
    state.protocol = state.protocol.built(optimizer.oid)
    return optimizer


def make_module(m: Interpreter, at: int, api: str, args: Args, state: State) -> Object:
    """A module of a library, with its children and its precision."""
    given = [value for key, value in args if key in (None, "*")]
    children = tuple(value for value in given if isinstance(value, Object | Items | Symbol | Table))
    exact = all(value.exact for value in children if isinstance(value, Items | Table)) and all(
        key != "*" for key, _ in args
    )
    facts: list[tuple[str, Value]] = [("children", Items("tuple", tuple(flatten_children(children)), exact))]
    for key in ("eps", "bias"):
        value = arguments.argument(args, apis.EPS_POSITION.get(api.rpartition(".")[2]) if key == "eps" else None, key)
        if value is not None:
            facts.append((key, value))
    module = Object(
        "module",
        f"{apis.short(api)}@{at}.{m.here}" + (f"#{m.calls[-1]}" if m.calls else ""),
        api=api,
        at=at,
        facts=tuple(sorted(facts, key=lambda p: p[0])),
    )
    for stale in [place for place in state.heap if place[0] == module.oid]:
        del state.heap[stale]
    dtype = dtype_of(arguments.argument(args, None, "dtype"))
    if dtype:
        modules.set_precision(module, dtype, at, state)
    m.emit(Construct(at, module, args), state)
    return module


def flatten_children(children: tuple[Value, ...]) -> list[Value]:
    """The children of a module, lists among them opened."""
    return [item for child in children for item in flat(child)]


def copied(m: Interpreter, at: int, value: Value | None, state: State) -> Value:
    """A deep copy is another object of the same kind and precision."""
    if isinstance(value, Object) and value.role in ("module", "instance", "optimizer"):
        other = replace(
            value, oid=f"{value.oid}+copy@{at}", facts=tuple(sorted({**dict(value.facts), "copy": TRUE}.items()))
        )
        for (owner, name), attr in list(state.heap.items()):
            if owner == value.oid:
                state.heap[(other.oid, name)] = attr
        return other
    if isinstance(value, Symbol):
        symbol = Symbol(f"copy({value.key})@{at}", value.name)
        return (
            Object("module", symbol.key, facts=(("copy", TRUE),), origin="used", at=at)
            if modules.looks_like_module(m, value)
            else symbol
        )
    return value if value is not None else NONE
