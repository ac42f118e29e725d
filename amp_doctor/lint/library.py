"""What library calls do: constructors, the scaler's and the optimizer's methods, modules, builtins."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis, evaluate, operators, tensors
from amp_doctor.lint.assume import assume, decide
from amp_doctor.lint.events import (
    Args,
    Backward,
    Cast,
    Clip,
    Construct,
    OpCall,
    Scale,
    Step,
    Unscale,
    Update,
    ZeroGrad,
)
from amp_doctor.lint.objects import (
    FALSE,
    FP32,
    HALF,
    NONE,
    TRUE,
    Api,
    Class,
    Items,
    Literal,
    Object,
    Partial,
    Symbol,
    Table,
    Tensor,
    Test,
    Value,
    dtype_of,
    flat,
    text,
)
from amp_doctor.lint.protocol import appear, modules_of, owners_of, reached_by
from amp_doctor.lint.trace import Name

if TYPE_CHECKING:
    from amp_doctor.lint.calls import Outcome
    from amp_doctor.lint.interpreter import Interpreter
    from amp_doctor.lint.state import State


def positional(args: Args) -> list[Value]:
    return [value for key, value in args if key is None]


def argument(args: Args, position: int | None, keyword: str) -> Value | None:
    for key, value in args:
        if key == keyword:
            return value
    plain = positional(args)
    return plain[position] if position is not None and position < len(plain) else None


def opaque(m: Interpreter, at: int, args: Args, state: State, name: str = "") -> Value:
    """The result of a call nobody knows: a tensor when tensors went in, else a fresh symbol."""
    inputs = tensors.tensors_in([value for _, value in args])
    if inputs:
        base = tensors.merged(inputs)
        return Tensor(None, False, None, base.sources, base.tags | {"unseen"}, at)
    return evaluate.fresh(m, f"call@{at}", name, state)


# --- constructors --------------------------------------------------------------------------------


def make_scaler(m: Interpreter, at: int, api: str, args: Args, state: State) -> Object:
    position, device_first = apis.SCALERS[api]
    enabled = argument(args, position, "enabled") or TRUE
    device = argument(args, 0, "device") if device_first else None
    if any(key in ("*", "**") for key, _ in args):
        enabled = argument(args, None, "enabled") or Symbol(f"enabled@{at}", "enabled")
    scaler = Object(
        "scaler", f"scaler@{at}.{m.here}", api=api, at=at, facts=(("device", device or NONE), ("enabled", enabled))
    )
    m.emit(Construct(at, scaler, args), state)
    state.protocol = state.protocol.recreated(scaler.oid)
    return scaler


def make_autocast(m: Interpreter, at: int, api: str, args: Args, state: State) -> Object:
    device, order = apis.AUTOCASTS[api]
    values = {name: argument(args, position, name) for position, name in enumerate(order)}
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
    params = argument(args, 0, "params")
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
    given = [value for key, value in args if key in (None, "*")]
    children = tuple(value for value in given if isinstance(value, Object | Items | Symbol | Table))
    exact = all(value.exact for value in children if isinstance(value, Items | Table)) and all(
        key != "*" for key, _ in args
    )
    facts: list[tuple[str, Value]] = [("children", Items("tuple", tuple(flatten_children(children)), exact))]
    for key in ("eps", "bias"):
        value = argument(args, apis.EPS_POSITION.get(api.rpartition(".")[2]) if key == "eps" else None, key)
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
    dtype = dtype_of(argument(args, None, "dtype"))
    if dtype:
        set_precision(module, dtype, at, state)
    m.emit(Construct(at, module, args), state)
    return module


def module_output(module: Object, inputs: list[Tensor], state: State, at: int) -> Tensor:
    """What calling a library module returns; a Sequential hands it from child to child."""
    precision = precision_of(module, state)
    children = module.fact("children")
    if (
        module.api != "torch.nn.Sequential"
        or not isinstance(children, Items)
        or not children.exact
        or not children.items
    ):
        return tensors.module_result(module, result_api(module), inputs, state, at, module.oid, precision)
    flowing = inputs
    for child in children.items:
        if isinstance(child, Object) and child.role == "module":
            part = module_output(child, flowing, state, at)
            if precision and part.dtype != precision and tensors.region_dtype(state) is None:
                part = replace(part, dtype=None, sure=False)
        else:
            part = tensors.module_result(child, "", flowing, state, at, text(child), precision)
        flowing = [part]
    return replace(flowing[0], sources=flowing[0].sources | {module.oid})


def forwarded(m: Interpreter, module: Object | Symbol, result: Value, at: int, state: State) -> Value:
    """After a call of a module: whether the region's cast weights, made now, have a graph; and who compiled it."""
    region = tensors.active_region(state)
    if region is not None and region.cache is not False:
        how = "mixed" if "mode:mixed.enable_grad" in state.modes else "no_grad" if m.no_grad(state) else "grad"
        state.heap.setdefault(("%cached", text(module)), Literal((how, at, m.forwards())))
    return compiled(module, result, state)


def compiled(callee: Value, result: Value, state: State) -> Value:
    """What a compiled model or function made under autocast: its backward is compiled for that state."""
    if (
        isinstance(result, Tensor)
        and (text(callee), "%compiled") in state.heap
        and tensors.active_region(state) is not None
    ):
        return result.tagged("compiled")
    return result


def flatten_children(children: tuple[Value, ...]) -> list[Value]:
    return [item for child in children for item in flat(child)]


def class_facts(m: Interpreter, cls: Class, state: State) -> tuple[tuple[str, Value], ...]:
    bases = evaluate.api_bases(m, cls, state)
    module = any(
        base in ("torch.nn.Module", "nn.Module")
        or base.endswith(("Module", "PreTrainedModel", "Layer"))
        or base.startswith("torch.nn.")
        for base in bases
    )
    return (("module", Literal(module)),)


def is_module_value(value: Value) -> bool:
    if not isinstance(value, Object):
        return False
    if value.role == "module":
        return True
    fact = value.fact("module")
    return value.role == "instance" and isinstance(fact, Literal) and bool(fact.value)


def result_api(module: Object) -> str:
    """The built-in layer that decides the dtype of a module's result: the last one of a Sequential."""
    if module.api == "torch.nn.Sequential":
        children = module.fact("children")
        if isinstance(children, Items) and children.items:
            last = children.items[-1]
            for child in reversed(children.items):
                if isinstance(child, Object) and (
                    apis.LOWER_MODULES.match(child.api) or apis.FLOAT32_MODULES.match(child.api)
                ):
                    return child.api
                if isinstance(child, Object) and child.api == "torch.nn.Sigmoid" and child is last:
                    return child.api
                if not isinstance(child, Object) or child.role != "module":
                    return ""
        return ""
    return module.api


# --- precision of modules ------------------------------------------------------------------------


def set_precision(module: Object | Symbol, dtype: str, at: int, state: State) -> None:
    key = text(module)
    state.heap[(key, "%dtype")] = Literal(dtype)
    state.heap[(key, "%cast")] = Literal(at)


def children_of(module: Value, state: State) -> list[Value]:
    found: list[Value] = []
    if isinstance(module, Object):
        children = module.fact("children")
        if isinstance(children, Items):
            found += children.items
        if module.role == "instance":
            for (owner, name), value in state.heap.items():
                if owner == module.oid and not name.startswith("%"):
                    found += [
                        item
                        for item in flat(value)
                        if isinstance(item, Object) and is_module_value(item) and item != module
                    ]
    return found


def precision_at(module: Value, state: State, depth: int = 0) -> tuple[str, int] | None:
    """The dtype a module (or a part of it) was cast to, and where; None when it was not, as far as seen."""
    value = state.heap.get((text(module), "%dtype"))
    if isinstance(value, Literal) and isinstance(value.value, str):
        cast = state.heap.get((text(module), "%cast"))
        return value.value, cast.value if isinstance(cast, Literal) else 0
    if depth < 4:
        for child in children_of(module, state):
            found = precision_at(child, state, depth + 1)
            if found is not None and found[0] != FP32:
                return found
    return None


def precision_of(module: Value, state: State) -> str | None:
    found = precision_at(module, state)
    return found[0] if found else None


def has_batchnorm(module: Value, state: State, depth: int = 0) -> bool:
    if isinstance(module, Object):
        if apis.BATCHNORM.match(module.api) or apis.BATCHNORM_MODELS.match(module.api):
            return True
        if depth < 6:
            return any(has_batchnorm(child, state, depth + 1) for child in children_of(module, state))
    return False


# --- roles by use --------------------------------------------------------------------------------


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


def as_optimizer(m: Interpreter, value: Value | None) -> Object | None:
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


# --- methods -------------------------------------------------------------------------------------


def call_method(m: Interpreter, at: int, receiver: Value, name: str, args: Args, state: State, used: bool) -> Outcome:
    """A method of something that is not first-party code."""
    scaler = as_scaler(m, receiver)
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
        return [(scaler_method(m, at, scaler, name, args, state, used), state)]
    if isinstance(receiver, Object) and receiver.role == "optimizer":
        return [(optimizer_method(m, at, receiver, name, args, state), state)]
    if (
        isinstance(receiver, Symbol)
        and (name in ("step", "zero_grad") or apis.DOES_BACKWARD.search(name))
        and role_by_use(m, receiver, state) == "optimizer"
    ):
        return [(optimizer_method(m, at, Object("optimizer", receiver.key, origin="used"), name, args, state), state)]
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
        return [(container_method(m, at, receiver, name, args, state), state)]
    return operators.method(m, at, receiver, name, args, state, used)


def scaler_method(m: Interpreter, at: int, scaler: Object, name: str, args: Args, state: State, used: bool) -> Value:
    operand = argument(args, 0, {"scale": "outputs", "update": "new_scale"}.get(name, "optimizer"))
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
        optimizer = as_optimizer(m, operand)
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
    match operand:
        case Tensor():
            return replace(operand, scaled=oid, at=at)
        case Items(kind, items, exact):
            return Items(kind, tuple(scaled(item, oid, at) for item in items), exact)
        case _:
            return Tensor(None, False, oid, frozenset(), frozenset({"loss"}), at)


def step(m: Interpreter, at: int, operand: Value | None, scaler: Object | None, args: Args, state: State) -> Value:
    optimizer = as_optimizer(m, operand)
    if optimizer is None:
        return NONE
    appear(state, optimizer)
    closure = argument(args, 1, "closure")
    m.emit(Step(at, optimizer, scaler, closure), state)
    state.protocol = state.protocol.step(scaler.oid if scaler else None, optimizer.oid, at)
    return NONE


def optimizer_method(m: Interpreter, at: int, optimizer: Object, name: str, args: Args, state: State) -> Value:
    appear(state, optimizer)
    if name == "step":
        closure = argument(args, 0, "closure")
        m.emit(Step(at, optimizer, None, closure), state)
        state.protocol = state.protocol.step(None, optimizer.oid, at)
        return NONE
    if name == "zero_grad":
        m.emit(ZeroGrad(at, (optimizer.oid,)), state)
        state.protocol = state.protocol.zeroed((optimizer.oid,))
        return NONE
    m.emit(OpCall(at, f"Optimizer.{name}", optimizer, args, NONE, True), state)
    if name in ("state_dict", "load_state_dict"):
        return Object("state", f"{optimizer.oid}.state", facts=(("of", optimizer),), at=at)
    if name == "add_param_group":
        old = state.heap.get((optimizer.oid, "%modules"))
        more = modules_of(argument(args, 0, "param_group"))
        if isinstance(old, Literal):
            state.heap[(optimizer.oid, "%modules")] = Literal("|".join(sorted({*str(old.value).split("|"), *more})))
        return NONE
    if name in ("train", "eval"):
        return NONE
    if apis.DOES_BACKWARD.search(name):
        state.protocol = state.protocol.touched(optimizer.oid)
    return opaque(m, at, args, state, name)


def container_method(m: Interpreter, at: int, receiver: Items | Table, name: str, args: Args, state: State) -> Value:
    """Lists and dicts: reading methods have values; mutation is written back by the caller's variable."""
    first = argument(args, 0, "")
    if isinstance(receiver, Table):
        if name == "items":
            return Items("list", tuple(Items("tuple", pair) for pair in receiver.pairs), receiver.exact)
        if name == "values":
            return Items("list", tuple(value for _, value in receiver.pairs), receiver.exact)
        if name == "keys":
            return Items("list", tuple(key for key, _ in receiver.pairs), receiver.exact)
        if name in ("get", "pop") and first is not None:
            found = receiver.get(first)
            if found is not None:
                return found
            default = argument(args, 1, "default")
            return (
                (default or NONE)
                if receiver.exact and isinstance(first, Literal)
                else Symbol(f"{text(receiver)}.get({text(first)})")
            )
        if name == "copy":
            return receiver
    elif name == "copy":
        return receiver
    elif name == "pop" and receiver.items:
        return receiver.items[-1]
    mutate(m, receiver, name, args, state)
    return NONE


def mutate(m: Interpreter, receiver: Items | Table, name: str, args: Args, state: State) -> None:
    """`items.append(x)`: every variable and attribute that holds this very list holds the longer one."""
    new: Value
    first = argument(args, 0, "")
    if isinstance(receiver, Items) and name in ("append", "add", "insert") and first is not None:
        value = positional(args)[-1]
        if isinstance(value, Tensor):
            value = value.tagged("stored")
        if m.loops or len(receiver.items) > 12:
            new = Items(
                receiver.kind, receiver.items if value in receiver.items else (*receiver.items, value)[:12], False
            )
        else:
            new = Items(receiver.kind, (*receiver.items, value), receiver.exact)
    elif isinstance(receiver, Items) and name == "extend" and isinstance(first, Items):
        kept = (part.tagged("stored") if isinstance(part, Tensor) else part for part in first.items)
        new = Items(receiver.kind, (*receiver.items, *kept)[:16], receiver.exact and first.exact)
    elif isinstance(receiver, Table) and name == "update":
        extra = tuple((Literal(key), value) for key, value in args if key not in (None, "*", "**"))
        more = first.pairs if isinstance(first, Table) else ()
        new = Table((*receiver.pairs, *more, *extra), receiver.exact and (first is None or isinstance(first, Table)))
    else:
        new = replace(receiver, exact=False)
    for store in (state.env, state.heap):
        for key, value in store.items():
            if value is receiver or (value == receiver and type(value) is type(receiver)):
                store[key] = new  # type: ignore[index]


def backward(m: Interpreter, at: int, tensor: Value, args: Args, state: State) -> Value:
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
            if is_module_value(target):
                for child in _descendants(target, state):
                    state.heap.pop((text(child), "%dtype"), None)
                set_precision(target, dtype, at, state)
            return target
        if (
            target.key in m.facts.get("modules", ())
            or _MAKES_MODELS.search(target.name)
            or _looks_like_module(m, target, state)
        ):
            set_precision(target, dtype, at, state)
            return target
        known = frozenset({"guessed", "upcast"} if dtype == FP32 else {"guessed"})
        return Tensor(dtype, True, None, frozenset(), known, at)
    return target


def _descendants(module: Value, state: State, depth: int = 0) -> list[Value]:
    if depth > 4:
        return []
    children = children_of(module, state)
    return children + [deep for child in children for deep in _descendants(child, state, depth + 1)]


def _looks_like_module(m: Interpreter, value: Symbol, state: State | None = None) -> bool:
    """An unknown object on which the file calls what only modules have, under any name that holds it."""
    uses = set(m.module.uses.get(value.name, ()))
    if state is not None:
        for store in (state.env, state.heap):
            uses |= {use for (_, name), held in store.items() if held == value for use in m.module.uses.get(name, ())}
    return bool(
        uses
        & {
            "parameters",
            "named_parameters",
            "train",
            "eval",
            "load_state_dict",
            "state_dict",
            "named_modules",
            "requires_grad_",
            "modules",
        }
    )


# --- functions -----------------------------------------------------------------------------------


def call_api(m: Interpreter, at: int, api: str, args: Args, state: State, used: bool) -> Outcome:
    """A library function or constructor."""
    if api in apis.SCALERS:
        return [(make_scaler(m, at, api, args, state), state)]
    if api in apis.AUTOCASTS:
        return [(make_autocast(m, at, api, args, state), state)]
    if apis.is_optimizer(api) and api != "torch.optim.Optimizer":
        return [(make_optimizer(m, at, api, args, state), state)]
    if api.startswith("builtins."):
        return builtin(m, at, api.removeprefix("builtins."), args, state)
    if api in apis.NO_GRAD or api in ("torch.enable_grad", "torch.set_grad_enabled"):
        first = argument(args, 0, "mode")
        if isinstance(first, Literal) and (first.value is False) == (api != "torch.set_grad_enabled"):
            return [(Object("mode", "torch.enable_grad", api="torch.enable_grad"), state)]
        if api == "torch.set_grad_enabled" and first is not None and re.search(r"\b(each|index)@", text(first)):
            # On in some turns of a loop only.
            return [(Object("mode", "mixed.enable_grad", api="mixed.enable_grad"), state)]
        if api == "torch.set_grad_enabled" and not (isinstance(first, Literal) and first.value is False):
            return [(Object("mode", "torch.enable_grad", api="torch.enable_grad"), state)]
        plain = positional(args)
        if plain and not isinstance(plain[0], Literal):
            return [(plain[0], state)]
        return [(Object("mode", api, api=api), state)]
    if api in apis.WRAPPERS:
        first = argument(args, 0, "module") or argument(args, None, "model")
        m.emit(OpCall(at, api, None, args, first or NONE, used), state)
        if first is None:
            return [(Api(api), state)]
        if api == "torch.compile":
            state.heap[(text(first), "%compiled")] = TRUE
        return [(first, state)]
    if api in apis.CLIPS:
        limit = argument(args, 1, "max_norm") or argument(args, None, "clip_value")
        return [(clip(m, at, api, argument(args, 0, "parameters"), limit, state), state)]
    if api in ("functools.partial",):
        plain = positional(args)
        if plain:
            rest = tuple((key, value) for key, value in args if key is not None)
            return [(Partial(plain[0], tuple((None, value) for value in plain[1:]) + rest), state)]
    if api in ("copy.deepcopy", "copy.copy"):
        return [(copied(m, at, argument(args, 0, "x"), state), state)]
    if apis.is_module(api):
        return [(make_module(m, at, api, args, state), state)]
    if apis.BATCHNORM_MODELS.match(api):
        return [(make_module(m, at, api, args, state), state)]
    if api == "contextlib.nullcontext":
        return [(Object("null", f"nullcontext@{at}", api=api, at=at), state)]
    if api.startswith("torch.optim.lr_scheduler.") or "lr_scheduler" in api:
        return [(Object("scheduler", f"scheduler@{at}.{m.here}", api=api, at=at), state)]
    if api == "torch.device":
        first = argument(args, 0, "type")
        if isinstance(first, Literal) and isinstance(first.value, str):
            kind = Test("eq", (Symbol(f"device({text(first)}).type"), Literal(first.value.split(":")[0])))
            state.known = (assume(kind, True, state.known) or [state.known])[0]
        return [(Object("device", f"device({text(first)})", api=api, facts=(("type", first or NONE),), at=at), state)]
    if api == "itertools.chain":
        return [(Items("list", tuple(positional(args)), False), state)]
    return operators.function(m, at, api, args, state, used)


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
            if _looks_like_module(m, value)
            else symbol
        )
    return value if value is not None else NONE


def builtin(m: Interpreter, at: int, name: str, args: Args, state: State) -> Outcome:
    from amp_doctor.lint.calls import call_value

    plain = positional(args)
    first = plain[0] if plain else None
    if name == "super":
        receiver = _self_of(m, state)
        if isinstance(receiver, Object) and receiver.cls is not None and m.stack[-1].function.owner is not None:
            owner = Class(m.stack[-1].function.owner, m.parents.get(m.here, receiver.cls.frame))
            return [(Object("super", f"super({receiver.oid})", facts=(("self", receiver),), cls=owner), state)]
        return [(Symbol(f"super@{m.here}"), state)]
    if name == "enumerate" and first is not None:
        return [(_enumerated(m, at, first, state), state)]
    if name == "zip":
        return [(_zipped(m, at, plain, state), state)]
    if name in ("list", "tuple", "set", "sorted", "reversed", "iter", "frozenset") and first is not None:
        if isinstance(first, Items):
            items = tuple(reversed(first.items)) if name == "reversed" else first.items
            return [(Items("list", items, first.exact), state)]
        return [(first, state)]
    if name in ("list", "dict", "set", "tuple") and not args:
        return [(Table(()) if name == "dict" else Items(name, ()), state)]
    if name == "dict":
        pairs = tuple((Literal(key), value) for key, value in args if key not in (None, "*", "**"))
        base = first.pairs if isinstance(first, Table) else ()
        return [(Table((*base, *pairs), first is None or isinstance(first, Table)), state)]
    if name == "filter" and len(plain) > 1:
        return [(plain[1], state)]
    if name == "map" and len(plain) > 1:
        return [(opaque(m, at, tuple((None, value) for value in plain[1:]), state), state)]
    if name == "id":
        return [(Symbol(f"id({text(first)})"), state)]
    if name == "bool" and first is not None:
        return [(first if not isinstance(first, Tensor) else evaluate.fresh(m, f"call@{at}", "", state), state)]
    if name in ("float", "int", "len", "str", "repr", "round"):
        if isinstance(first, Literal) and name in ("float", "int"):
            try:
                return [(Literal({"float": float, "int": int}[name](first.value), at), state)]
            except (TypeError, ValueError):
                pass
        if isinstance(first, Items) and first.exact and name == "len":
            return [(Literal(len(first.items)), state)]
        if isinstance(first, Tensor):
            m.emit(OpCall(at, f"builtins.{name}", None, args, NONE, True), state)
            found = evaluate.fresh(m, f"call@{at}", "", state)
            return [(Symbol(f"len({found.key})", found.name) if name == "len" else found, state)]
        if isinstance(first, Object) and first.role == "gradient":
            evaluate.read_gradient(m, first, "read", at, state)
        return [(Symbol(f"{name}({text(first)})"), state)]
    if name in ("sum", "max", "min", "abs", "next"):
        inputs = tensors.tensors_in(plain)
        if inputs:
            if name == "next":
                return [(inputs[0], state)]
            return [(tensors.op_result("add", inputs, state, at, mixed=True), state)]
        if name == "next" and isinstance(first, Object) and first.role == "params":
            return [(Object("param", f"{first.oid}[]", facts=first.facts, at=at), state)]
        return [(evaluate.fresh(m, f"call@{at}", "", state), state)]
    if name in ("isinstance", "hasattr", "callable"):
        answer = _isinstance(m, plain, state) if name == "isinstance" else None
        if (
            name == "hasattr"
            and isinstance(first, Object)
            and first.role == "device"
            and plain[1:] == [Literal("type")]
        ):
            answer = TRUE
        return [(answer or Symbol(f"{name}({','.join(text(value) for value in plain)})"), state)]
    if name == "getattr" and len(plain) > 1:
        if isinstance(plain[1], Literal) and isinstance(plain[1].value, str):
            return [(evaluate.attribute(m, plain[0], plain[1].value, at, state), state)]
        return [(Symbol(f"getattr({text(plain[0])},{text(plain[1])})"), state)]
    if name == "setattr" and len(plain) > 2 and isinstance(plain[1], Literal):
        state.heap[(text(plain[0]), str(plain[1].value))] = plain[2]
        return [(NONE, state)]
    if name in ("print", "str", "repr", "open", "vars", "type", "range", "any", "all"):
        for value in plain:
            if isinstance(value, Object) and value.role == "gradient":
                evaluate.read_gradient(m, value, "read", at, state)
        if name == "print":
            m.emit(OpCall(at, "builtins.print", None, args, NONE, False), state)
        return [(evaluate.fresh(m, f"call@{at}", "", state), state)]
    del call_value
    return [(opaque(m, at, args, state), state)]


def _isinstance(m: Interpreter, plain: list[Value], state: State) -> Value | None:
    if len(plain) == 2 and isinstance(plain[0], Object) and isinstance(plain[1], Class) and plain[0].cls is not None:
        return TRUE if plain[0].cls.definition is plain[1].definition else None
    if len(plain) == 2 and isinstance(plain[0], Items | Table | Literal) and isinstance(plain[1], Class):
        return FALSE
    if len(plain) == 2 and isinstance(plain[1], Api) and plain[1].name in ("builtins.str", "torch.device"):
        if isinstance(plain[0], Object) and plain[0].role == "device":
            return TRUE if plain[1].name == "torch.device" else FALSE
        if isinstance(plain[0], Literal):
            return TRUE if plain[1].name == "builtins.str" and isinstance(plain[0].value, str) else FALSE
    return None


def _self_of(m: Interpreter, state: State) -> Value | None:
    if not m.stack or not m.stack[-1].function.params:
        return None
    return state.env.get((m.here, m.stack[-1].function.params[0].name))


def _enumerated(m: Interpreter, at: int, source: Value, state: State) -> Value:
    known = evaluate.known_elements(source)
    if known is not None and isinstance(source, Items) and source.exact:
        return Items("list", tuple(Items("tuple", (Literal(n), part)) for n, part in enumerate(known)))
    element = Items("tuple", (Symbol(f"index@{at}", "index"), evaluate.element_of(m, source, at, state)))
    return Object("iter", f"enumerate@{at}", facts=(("element", element),))


def _zipped(m: Interpreter, at: int, sources: list[Value], state: State) -> Value:
    known = [evaluate.known_elements(source) for source in sources]
    lists = [part for part in known if part is not None]
    if lists and len(lists) == len(sources):
        exact = all(isinstance(source, Items) and source.exact for source in sources)
        return Items("list", tuple(Items("tuple", parts) for parts in zip(*lists, strict=False)), exact)
    element = Items(
        "tuple",
        tuple(
            part[0] if part else evaluate.element_of(m, source, at, state)
            for part, source in zip(known, sources, strict=True)
        ),
    )
    return Object("iter", f"zip@{at}", facts=(("element", element),))


# --- contexts ------------------------------------------------------------------------------------


def autocast_called(m: Interpreter, at: int, context: Object, args: Args, state: State) -> Value:
    """`autocast(...)(something)`: wraps a function; a tensor is a mistake (AMP117)."""
    first = positional(args)[0] if positional(args) else NONE
    m.emit(OpCall(at, "autocast.__call__", context, args, first, True), state)
    return Object("autocasted", f"autocasted@{at}", facts=(("context", context), ("function", first)), at=at)


def unknown_context(m: Interpreter, at: int, context: Value, state: State) -> None:
    """Entering a context of unknown make: nothing is known of regions inside it if it may be autocast."""
    if isinstance(context, Api) and context.name in apis.AUTOCASTS:
        m.emit(OpCall(at, "autocast.__enter__", context, (), NONE, True), state)
    names = {item.name for item in flat(context) if isinstance(item, Symbol)}
    m.facts.setdefault("contexts", set()).update(names)


def name_is(term: object, name: str) -> bool:
    return isinstance(term, Name) and term.id == name


_ = modules_of
