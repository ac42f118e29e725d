"""What is known of modules: their parts, precision and batch norms, what calling them gives, what is taken for one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.machine import classes, tensors
from amp_doctor.lint.objects import (
    FP32,
    Class,
    Items,
    Literal,
    Object,
    Symbol,
    Tensor,
    Value,
    flat,
    text,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


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


def class_facts(m: Interpreter, cls: Class, state: State) -> tuple[tuple[str, Value], ...]:
    """What is noted of a first-party class: whether it is a module, by its bases."""
    bases = classes.api_bases(m, cls, state)
    module = any(
        base in ("torch.nn.Module", "nn.Module")
        or base.endswith(("Module", "PreTrainedModel", "Layer"))
        or base.startswith("torch.nn.")
        for base in bases
    )
    return (("module", Literal(module)),)


def is_module_value(value: Value) -> bool:
    """An object that is a module: of a library, or of a first-party class that derives from one."""
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


def set_precision(module: Object | Symbol, dtype: str, at: int, state: State) -> None:
    """Note that a module was cast, and where."""
    key = text(module)
    state.heap[(key, "%dtype")] = Literal(dtype)
    state.heap[(key, "%cast")] = Literal(at)


def children_of(module: Value, state: State) -> list[Value]:
    """The modules that a module holds, as far as they are known."""
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
    """The dtype a module (or a part of it) was cast to, if it was."""
    found = precision_at(module, state)
    return found[0] if found else None


def has_batchnorm(module: Value, state: State, depth: int = 0) -> bool:
    """The module is or holds a batch norm."""
    if isinstance(module, Object):
        if apis.BATCHNORM.match(module.api) or apis.BATCHNORM_MODELS.match(module.api):
            return True
        if depth < 6:
            return any(has_batchnorm(child, state, depth + 1) for child in children_of(module, state))
    return False


def descendants(module: Value, state: State, depth: int = 0) -> list[Value]:
    """The modules a module holds, those inside them too."""
    if depth > 4:
        return []
    children = children_of(module, state)
    return children + [deep for child in children for deep in descendants(child, state, depth + 1)]


def looks_like_module(m: Interpreter, value: Symbol, state: State | None = None) -> bool:
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
