"""Calls: follow first-party code, hand library names to `library`, and be careful about the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.events import Args, Enter, Forward, NoneCall
from amp_doctor.lint.machine import (
    arguments,
    classes,
    contexts,
    ducks,
    escapes,
    evaluate,
    follow,
    library,
    modules,
    tensors,
)
from amp_doctor.lint.objects import (
    Api,
    Class,
    Code,
    Items,
    Literal,
    Method,
    Object,
    Partial,
    Symbol,
    Table,
    Tensor,
    Test,
    Value,
    flat,
    text,
)
from amp_doctor.lint.trace import Attr, CallLeaf, Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State

Outcome = list[tuple["Value", "State"]]


def call_leaf(m: Interpreter, leaf: CallLeaf, state: State) -> list[State]:
    """Make the call of a leaf, and keep its result under the name of the temporary."""
    args = given(m, leaf, state)
    func: Value
    if isinstance(leaf.func, Attr):
        receiver = evaluate.evaluate(m, leaf.func.base, state)
        outcome = call_method(m, leaf, receiver, leaf.func.name, args, state)
    else:
        func = evaluate.evaluate(m, leaf.func, state)
        name = leaf.func.id if isinstance(leaf.func, Name) else ""
        outcome = call_value(m, leaf.at, func, args, state, used=leaf.used, name=name)
    after = []
    for value, each in outcome:
        each.temps[(m.here, leaf.temp)] = value
        after.append(each)
    return after


def given(m: Interpreter, leaf: CallLeaf, state: State) -> Args:
    """The arguments of a call as values, `*` and `**` opened where what they hold is known."""
    args: list[tuple[str | None, Value]] = []
    for key, term in leaf.args:
        value = evaluate.evaluate(m, term, state)
        if key == "*" and isinstance(value, Items) and value.exact:
            args += [(None, part) for part in value.items]
        elif key == "**" and isinstance(value, Table) and value.exact:
            args += [(str(k.value), part) for k, part in value.pairs if isinstance(k, Literal)]
        else:
            args.append((key, value))
    return tuple(args)


def call_value(
    m: Interpreter, at: int, func: Value, args: Args, state: State, used: bool = True, name: str = ""
) -> Outcome:
    """Call any value."""
    match func:
        case Code():
            return follow.call_code(m, at, func, args, state)
        case Class():
            return follow.instantiate(m, at, func, args, state)
        case Partial(inner, bound):
            return call_value(m, at, inner, (*bound, *args), state, used, name)
        case Method(receiver, method):
            return library.call_method(m, at, receiver, method, args, state, used)
        case Api(api):
            return library.call_api(m, at, api, args, state, used)
        case Object("autocasted"):
            return call_autocasted(m, at, func, args, state)
        case Object("module" | "instance"):
            return call_module(m, at, func, args, state)
        case Object("autocast"):
            return [(library.autocast_called(m, at, func, args, state), state)]
        case Object("iter") | Object():
            return [(arguments.opaque(m, at, args, state), state)]
        case Test("and" | "or", parts):
            # `flag and function`: when it is called it is the function.
            callable_parts = [part for part in parts if isinstance(part, Code | Partial | Api | Object)]
            if len(callable_parts) == 1:
                return call_value(m, at, callable_parts[0], args, state, used, name)
            return [(arguments.opaque(m, at, args, state), state)]
        case Literal(value) if value is None:
            m.emit(NoneCall(at, name), state)
            return []
        case Symbol():
            settled = (
                m.project.settle(m, func, whole=escapes.gives_half(args))
                if func.key.startswith("import:") and escapes.worth_reading(func, args)
                else func
            )
            if settled is not func:
                return call_value(m, at, settled, args, state, used, name)
            return [(call_symbol(m, at, func, args, state), state)]
        case _:
            return [(arguments.opaque(m, at, args, state), state)]


def call_symbol(m: Interpreter, at: int, func: Symbol, args: Args, state: State) -> Value:
    """Something unknown is called: a model, a criterion, a helper that is not seen."""
    escapes.escape(m, func.name, args, state)
    inputs = tensors.tensors_in([value for _, value in args])
    if any(
        isinstance(item, Object) and item.role in ("params", "param", "optimizer")
        for _, value in args
        for item in flat(value)
    ):
        return evaluate.fresh(m, f"call@{at}", func.name, state)  # a class or factory that takes parameters
    if apis.HARMLESS.search(func.name) and not apis.LOSSISH.search(func.name):
        return evaluate.fresh(m, f"call@{at}", func.name, state)
    wrapped = state.heap.get((func.key, "%autocast"))
    if isinstance(wrapped, Object):
        return call_in_region(m, at, wrapped, lambda: call_unknown_module(m, at, func, args, inputs, state), state)
    return call_unknown_module(m, at, func, args, inputs, state)


def call_unknown_module(m: Interpreter, at: int, func: Symbol, args: Args, inputs: list[Tensor], state: State) -> Value:
    """The result of something unknown, taken for a module that was given these tensors."""
    precision = state.heap.get((func.key, "%dtype"))
    dtype = precision.value if isinstance(precision, Literal) else None
    result = tensors.module_result(func, "", inputs, state, at, func.key, dtype)
    given = {
        text(value)
        for _, value in args
        if modules.is_module_value(value) or (isinstance(value, Symbol) and modules.looks_like_module(m, value))
    }
    if given:
        # A function that is handed a model runs it: `render(field, rays)`.
        result = replace(result, sources=result.sources | given)
    if m.no_grad(state):
        result = result.tagged("detached")
    m.emit(Forward(at, func, args, result), state)
    return modules.forwarded(m, func, result, at, state)


def call_in_region(m: Interpreter, at: int, wrapped: Object, work: Callable[[], Value], state: State) -> Value:
    """Run `work` inside the region of an autocast object that a forward was wrapped in."""
    context = wrapped.fact("context")
    assert isinstance(context, Object)
    region = contexts.region_of(context, at)
    m.emit(Enter(at, region), state)
    state.regions = (*state.regions, region)
    result = work()
    state.regions = state.regions[:-1]
    return result


def call_autocasted(m: Interpreter, at: int, func: Object, args: Args, state: State) -> Outcome:
    """A function wrapped by calling an autocast object on it."""
    context, inner = func.fact("context"), func.fact("function")
    assert isinstance(context, Object)
    assert inner is not None
    region = contexts.region_of(context, at)
    m.emit(Enter(at, region), state)
    state.regions = (*state.regions, region)
    outcome = call_value(m, at, inner, args, state)
    for _, each in outcome:
        each.regions = each.regions[:-1]
    return outcome


def call_method(m: Interpreter, leaf: CallLeaf, receiver: Value, name: str, args: Args, state: State) -> Outcome:
    """`receiver.name(args)`."""
    at = leaf.at
    if isinstance(receiver, Literal) and receiver.value is None:
        m.emit(NoneCall(at, name), state)
        return []
    if isinstance(receiver, Api):
        return library.call_api(m, at, f"{receiver.name}.{name}", args, state, leaf.used)
    if isinstance(receiver, Object) and receiver.role == "super":
        return follow.call_super(m, at, receiver, name, args, state)
    if isinstance(receiver, Object) and receiver.cls is not None:
        value = state.heap.get((receiver.oid, name))
        if value is None:
            found = classes.find_method(m, receiver.cls, name, state)
            if found is not None:
                value = evaluate.object_attribute(m, receiver, name, at, state)
        if value is None:
            value = classes.class_attribute(m, receiver.cls, name, state)
        if value is not None:
            return call_value(m, at, value, args, state, leaf.used, name)
    if isinstance(receiver, Symbol) and receiver.key.startswith("import:"):
        func = Symbol(f"{receiver.key}.{name}", name)
        whole = escapes.gives_half(args)
        settled = m.project.settle(m, func, whole=whole) if escapes.worth_reading(func, args) else func
        if settled is not func:
            return call_value(m, at, settled, args, state, leaf.used, name)
    if isinstance(receiver, Class):
        value = evaluate.attribute(m, receiver, name, at, state)
        if isinstance(value, Code):
            decorators = [d.id for d in value.function.decorators if isinstance(d, Name)]
            if "classmethod" in decorators:
                value = Code(value.function, value.frame, receiver)
            return call_value(m, at, value, args, state, leaf.used, name)
    key = (text(receiver), name)
    if isinstance(receiver, Symbol | Object) and key in state.heap:
        return call_value(m, at, state.heap[key], args, state, leaf.used, name)
    duck = ducks.duck_typed(m, receiver, name, state)
    if duck is not None:
        return call_value(m, at, duck, args, state, leaf.used, name)
    return library.call_method(m, at, receiver, name, args, state, leaf.used)


def call_module(m: Interpreter, at: int, module: Object, args: Args, state: State) -> Outcome:
    """Call a module or an instance: its own `forward` or `__call__` when it is first-party code."""
    wrapped = state.heap.get((module.oid, "%autocast"))
    if module.cls is not None:
        for name in ("__call__", "forward"):
            found = classes.find_method(m, module.cls, name, state)
            if found is not None:
                outcome = follow.call_code(m, at, Code(found[0], found[1], module), args, state)
                for value, each in outcome:
                    m.emit(Forward(at, module, args, value), each)
                return [
                    (modules.forwarded(m, module, _sourced(value, module, m, each), at, each), each)
                    for value, each in outcome
                ]
    if wrapped is None and len(args) == 1 and _chain(module):
        return follow.settled(call_chain(m, at, module, args, state))
    inputs = tensors.tensors_in([value for _, value in args])

    def work() -> Value:
        result = modules.module_output(module, inputs, state, at)
        if m.no_grad(state):
            result = result.tagged("detached")
        m.emit(Forward(at, module, args, result), state)
        return modules.forwarded(m, module, result, at, state)

    if isinstance(wrapped, Object):
        return [(call_in_region(m, at, wrapped, work, state), state)]
    return [(work(), state)]


def _chain(module: Object) -> list[Value]:
    """The parts of a Sequential some of which are first-party code: what their forward does is followed."""
    children = module.fact("children")
    if module.api != "torch.nn.Sequential" or not isinstance(children, Items):
        return []
    own = any(isinstance(child, Object) and child.cls is not None for child in children.items)
    return list(children.items) if own else []


def call_chain(m: Interpreter, at: int, module: Object, args: Args, state: State) -> Outcome:
    """Hand a value from part to part; of several parts of one class the first stands for all."""
    outcome: Outcome = [(args[0][1], state)]
    met: set[int] = set()
    for child in _chain(module):
        if isinstance(child, Object) and child.cls is not None:
            if id(child.cls.definition) in met:
                continue
            met.add(id(child.cls.definition))
        after: Outcome = []
        for value, each in outcome[:4]:
            if isinstance(child, Object) and child.role in ("module", "instance"):
                after += call_module(m, at, child, ((None, value),), each)
            else:
                inputs = tensors.tensors_in([value])
                after.append((tensors.module_result(child, "", inputs, each, at, text(child), None), each))
        outcome = after
    for value, each in outcome:
        m.emit(Forward(at, module, args, value), each)
    return [(modules.forwarded(m, module, _sourced(value, module, m, each), at, each), each) for value, each in outcome]


def _sourced(value: Value, module: Object, m: Interpreter, state: State) -> Value:
    if isinstance(value, Tensor):
        value = replace(value, sources=value.sources | {module.oid})
        return value.tagged("detached") if m.no_grad(state) else value
    if isinstance(value, Items):
        return replace(value, items=tuple(_sourced(part, module, m, state) for part in value.items))
    return value
