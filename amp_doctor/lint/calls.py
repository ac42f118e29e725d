"""Calls: follow first-party code, hand library names to `library`, and be careful about the rest."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis, evaluate, library, tensors
from amp_doctor.lint.events import Args, Construct, Enter, Escape, Forward, Leave, NoneCall
from amp_doctor.lint.fold import fold
from amp_doctor.lint.objects import (
    NONE,
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
from amp_doctor.lint.trace import Attr, CallLeaf, Const, Name

if TYPE_CHECKING:
    from amp_doctor.lint.interpreter import Interpreter
    from amp_doctor.lint.state import State

Outcome = list[tuple["Value", "State"]]


def call_leaf(m: Interpreter, leaf: CallLeaf, state: State) -> list[State]:
    args = arguments(m, leaf, state)
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


def arguments(m: Interpreter, leaf: CallLeaf, state: State) -> Args:
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
            return call_code(m, at, func, args, state)
        case Class():
            return instantiate(m, at, func, args, state)
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
            return [(library.opaque(m, at, args, state), state)]
        case Test("and" | "or", parts):
            # `flag and function`: when it is called it is the function.
            callable_parts = [part for part in parts if isinstance(part, Code | Partial | Api | Object)]
            if len(callable_parts) == 1:
                return call_value(m, at, callable_parts[0], args, state, used, name)
            return [(library.opaque(m, at, args, state), state)]
        case Literal(value) if value is None:
            m.emit(NoneCall(at, name), state)
            return []
        case Symbol():
            settled = (
                m.project.settle(m, func) if func.key.startswith("import:") and worth_reading(func, args) else func
            )
            if settled is not func:
                return call_value(m, at, settled, args, state, used, name)
            return [(call_symbol(m, at, func, args, state), state)]
        case _:
            return [(library.opaque(m, at, args, state), state)]


def worth_reading(func: Symbol, args: Args) -> bool:
    """Is another file worth lowering for this call? Only if it can do something to what is tracked here."""
    if (
        apis.DOES_BACKWARD.search(func.name)
        or apis.LOSSISH.search(func.name)
        or re.search(r"model|net$|build|amp|[Tt]rainer", func.name)
    ):
        return True
    return any(
        isinstance(item, Tensor | Class)
        or (isinstance(item, Object) and item.role in ("scaler", "optimizer", "module", "instance", "params"))
        for _, value in args
        for item in flat(value)
    )


def call_symbol(m: Interpreter, at: int, func: Symbol, args: Args, state: State) -> Value:
    """Something unknown is called: a model, a criterion, a helper that is not seen."""
    escape(m, at, func.name, args, state)
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
    precision = state.heap.get((func.key, "%dtype"))
    dtype = precision.value if isinstance(precision, Literal) else None
    result = tensors.module_result(func, "", inputs, state, at, func.key, dtype)
    given = {
        text(value)
        for _, value in args
        if library.is_module_value(value) or (isinstance(value, Symbol) and library._looks_like_module(m, value))
    }
    if given:
        # A function that is handed a model runs it: `render(field, rays)`.
        result = replace(result, sources=result.sources | given)
    if m.no_grad(state):
        result = result.tagged("detached")
    m.emit(Forward(at, func, args, result), state)
    return library.forwarded(m, func, result, at, state)


def call_in_region(m: Interpreter, at: int, wrapped: Object, work, state: State) -> Value:  # type: ignore[no-untyped-def]
    context = wrapped.fact("context")
    assert isinstance(context, Object)
    region = m.region(context, at)
    m.emit(Enter(at, region), state)
    state.regions = (*state.regions, region)
    result = work()
    m.emit(Leave(at, region), state)
    state.regions = state.regions[:-1]
    return result  # type: ignore[no-any-return]


def call_autocasted(m: Interpreter, at: int, func: Object, args: Args, state: State) -> Outcome:
    """A function wrapped by calling an autocast object on it."""
    context, inner = func.fact("context"), func.fact("function")
    assert isinstance(context, Object)
    assert inner is not None
    region = m.region(context, at)
    m.emit(Enter(at, region), state)
    state.regions = (*state.regions, region)
    outcome = call_value(m, at, inner, args, state)
    for _, each in outcome:
        m.emit(Leave(at, region), each)
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
        return call_super(m, at, receiver, name, args, state)
    if isinstance(receiver, Object) and receiver.cls is not None:
        value = state.heap.get((receiver.oid, name))
        if value is None:
            found = evaluate.find_method(m, receiver.cls, name, state)
            if found is not None:
                value = evaluate.object_attribute(m, receiver, name, at, state)
        if value is None:
            value = evaluate.class_attribute(m, receiver.cls, name, state)
        if value is not None:
            return call_value(m, at, value, args, state, leaf.used, name)
    if isinstance(receiver, Symbol) and receiver.key.startswith("import:"):
        func = Symbol(f"{receiver.key}.{name}", name)
        settled = m.project.settle(m, func) if worth_reading(func, args) else func
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
    duck = duck_typed(m, receiver, name, state)
    if duck is not None:
        return call_value(m, at, duck, args, state, leaf.used, name)
    return library.call_method(m, at, receiver, name, args, state, leaf.used)


def duck_typed(m: Interpreter, receiver: Value, name: str, state: State) -> Value | None:
    """An unknown object whose every used method only one first-party class has, is taken to be of that class."""
    if not isinstance(receiver, Symbol) or not receiver.name:
        return None
    used = m.module.uses.get(receiver.name)
    if not used or name not in used:
        return None
    key = f"duck:{receiver.name}"
    if key not in m.facts:
        fits = [
            definition
            for definition in m.module.classes
            if used <= set(definition.methods)
            and not definition.name.startswith("_")
            and any(_amp_words(f.words) for f in definition.methods.values())
        ]
        several = [d for d in m.module.classes if name in d.methods]
        m.facts[key] = fits[0] if len(fits) == 1 and len(several) == 1 else None
    definition = m.facts[key]
    if definition is None:
        return None
    cls = Class(definition, m.module.frame)
    instance = seeded(m, cls, receiver, state)
    return evaluate.object_attribute(m, instance, name, 0, state)


def _amp_words(words: frozenset[str]) -> bool:
    return bool(words & {"scale", "unscale_", "backward", "autocast", "scaler"})


def seeded(m: Interpreter, cls: Class, receiver: Symbol, state: State) -> Object:
    """An object of `cls` known only by use: its attributes are run from __init__ once per path."""
    instance = Object(
        "instance",
        receiver.key,
        cls=cls,
        api=cls.definition.name,
        origin="used",
        facts=library.class_facts(m, cls, state),
    )
    if (receiver.key, "%seeded") not in state.heap:
        state.heap[(receiver.key, "%seeded")] = Literal(True)
        found = evaluate.find_method(m, cls, "__init__", state)
        if found is not None and len(m.stack) < 4:
            m.quiet += 1
            try:
                outcome = call_code(m, cls.definition.at, Code(found[0], found[1], instance), (), state.copy())
            finally:
                m.quiet -= 1
            if outcome:
                first = outcome[0][1]
                for (owner, name), value in first.heap.items():
                    if owner != receiver.key:
                        state.heap.setdefault((owner, name), value)
                    elif isinstance(value, Object) and value.role in ("optimizer", "scaler"):
                        # It may have been met before as `receiver.name`: one object, one name.
                        known = replace(value, oid=f"{receiver.key}.{name}")
                        state.heap.setdefault((owner, name), known)
                        for (part, fact), content in list(first.heap.items()):
                            if part == value.oid:
                                state.heap.setdefault((known.oid, fact), content)
                    elif not isinstance(value, Symbol | Literal):
                        state.heap.setdefault((owner, name), value)
    return instance


def call_super(m: Interpreter, at: int, receiver: Object, name: str, args: Args, state: State) -> Outcome:
    instance = receiver.fact("self")
    if isinstance(instance, Object) and receiver.cls is not None:
        for base in evaluate.bases_of(m, receiver.cls, state):
            if isinstance(base, Class):
                found = evaluate.find_method(m, base, name, state)
                if found is not None:
                    return call_code(m, at, Code(found[0], found[1], instance), args, state)
        if instance.role == "optimizer" and name == "step":
            return [(NONE, state)]
    if name == "__init__":
        return [(NONE, state)]
    return [(library.opaque(m, at, args, state), state)]


def call_module(m: Interpreter, at: int, module: Object, args: Args, state: State) -> Outcome:
    """Call a module or an instance: its own `forward` or `__call__` when it is first-party code."""
    wrapped = state.heap.get((module.oid, "%autocast"))
    if module.cls is not None:
        for name in ("__call__", "forward"):
            found = evaluate.find_method(m, module.cls, name, state)
            if found is not None:
                outcome = call_code(m, at, Code(found[0], found[1], module), args, state)
                for value, each in outcome:
                    m.emit(Forward(at, module, args, value), each)
                return [
                    (library.forwarded(m, module, _sourced(value, module, m, each), at, each), each)
                    for value, each in outcome
                ]
    if wrapped is None and len(args) == 1 and _chain(module):
        return _settled(m, call_chain(m, at, module, args, state))
    inputs = tensors.tensors_in([value for _, value in args])

    def work() -> Value:
        result = library.module_output(module, inputs, state, at)
        if m.no_grad(state):
            result = result.tagged("detached")
        m.emit(Forward(at, module, args, result), state)
        return library.forwarded(m, module, result, at, state)

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
    return [(library.forwarded(m, module, _sourced(value, module, m, each), at, each), each) for value, each in outcome]


def _sourced(value: Value, module: Object, m: Interpreter, state: State) -> Value:
    if isinstance(value, Tensor):
        value = replace(value, sources=value.sources | {module.oid})
        return value.tagged("detached") if m.no_grad(state) else value
    if isinstance(value, Items):
        return replace(value, items=tuple(_sourced(part, module, m, state) for part in value.items))
    return value


def instantiate(m: Interpreter, at: int, cls: Class, args: Args, state: State) -> Outcome:
    """Call a first-party class."""
    bases = evaluate.api_bases(m, cls, state)
    oid = f"{cls.definition.name}@{at}.{m.here}"
    if any(apis.is_optimizer(base) or base.endswith("Optimizer") for base in bases):
        optimizer = library.make_optimizer(m, at, cls.definition.name, args, state)
        return [(replace(optimizer, cls=cls), state)]
    if any(base in apis.SCALERS for base in bases):
        return [(library.make_scaler(m, at, "torch.amp.GradScaler", (), state), state)]
    instance = Object(
        "instance", oid, api=cls.definition.name, at=at, cls=cls, facts=library.class_facts(m, cls, state)
    )
    for stale in [place for place in state.heap if place[0] == oid]:
        del state.heap[stale]
    found = evaluate.find_method(m, cls, "__init__", state)
    if found is None:
        for position, (key, value) in enumerate(args):
            fields = [name for (owner, name) in state.heap if owner == text(cls)]
            name = key or (fields[position] if position < len(fields) else None)
            if name and name not in ("*", "**"):
                state.heap[(oid, name)] = value
        m.emit(Construct(at, instance, args), state)
        return [(instance, state)]
    outcome = call_code(m, at, Code(found[0], found[1], instance), args, state)
    for _, each in outcome:
        m.emit(Construct(at, instance, args), each)
    return [(instance, each) for _, each in outcome]


def call_code(m: Interpreter, at: int, code: Code, args: Args, state: State) -> Outcome:
    """Follow a first-party function."""
    from amp_doctor.lint.interpreter import MAX_DEPTH, Call

    function = code.function
    recursive = any(call.function is function for call in m.stack)
    if recursive or len(m.stack) > MAX_DEPTH or function.is_generator:
        if not function.is_generator:
            m.silences += 1
        escape(m, at, function.name, args, state)
        return [(library.opaque(m, at, args, state), state)]
    frame = m.frame(m.here, at + (m.calls[-1] if m.calls else 0) * 7919, function.at)
    m.parents[frame] = code.frame
    bind_parameters(m, function, code.receiver, args, frame, state)
    contexts = decorator_contexts(m, function, code.frame, state)
    marks, regions = state.modes, state.regions
    for context in contexts:
        m.enter_context(function.at, context, None, state)
    loops, m.loops = m.loops, list(m.loops)
    m.stack.append(Call(function, frame, at))
    try:
        flow = fold(m.body(function, state), [state], m)
    finally:
        m.stack.pop()
        m.loops = loops
    keeps = any(
        isinstance(part, Code) and part.frame == frame
        for end in flow.exits.get("return", [])
        for part in flat(end.env.get((frame, "%return")))
    )
    outcome: Outcome = []
    ends = [(NONE, end) for end in flow.ends]
    ends += [(end.env.pop((frame, "%return"), NONE), end) for end in flow.exits.get("return", [])]
    for value, end in ends:
        end.modes, end.regions = marks, regions
        if not keeps:
            end.leave_frame(frame)
        outcome.append((library.compiled(code, value, end), end))
    return _settled(m, outcome)


def _settled(m: Interpreter, outcome: Outcome) -> Outcome:
    if len(outcome) < 2:
        return outcome
    kept: Outcome = []
    for value, state in outcome:
        if not any(value == known and state.same(other) for known, other in kept):
            kept.append((value, state))
    return kept[:24]


def decorator_contexts(m: Interpreter, function, frame: int, state: State) -> list[Value]:  # type: ignore[no-untyped-def]
    """Decorators that are contexts: `@torch.no_grad()`, `@torch.autocast("cuda")`."""
    found: list[Value] = []
    for term, mark in zip(function.decorators, function.marks, strict=False):
        value: Value | None = mark
        if value is None and function.owner is not None and isinstance(term, Name):
            # The decorators of methods are made in the frame of the class body.
            value = state.heap.get((text(Class(function.owner, frame)), term.id))
        if isinstance(value, Object) and value.role in ("autocast", "mode"):
            found.append(value)
        elif isinstance(value, Api) and value.name in apis.NO_GRAD:
            found.append(Object("mode", value.name, api=value.name))
    return found


def bind_parameters(m: Interpreter, function, receiver: Value | None, args: Args, frame: int, state: State) -> None:  # type: ignore[no-untyped-def]
    from amp_doctor.lint.interpreter import Call

    params = list(function.params)
    plain = [value for key, value in args if key is None]
    if receiver is not None:
        plain.insert(0, receiver)
    named = {key: value for key, value in args if key not in (None, "*", "**")}
    open_ended = any(key in ("*", "**") for key, _ in args)
    for param in params:
        if param.kind == "*":
            state.env[(frame, param.name)] = Items("tuple", tuple(plain), not open_ended)
            plain = []
        elif param.kind == "**":
            rest = tuple((Literal(key), value) for key, value in named.items())
            state.env[(frame, param.name)] = Table(rest, not open_ended)
        elif param.name in named:
            state.env[(frame, param.name)] = named.pop(param.name)
        elif param.kind == "positional" and plain:
            state.env[(frame, param.name)] = plain.pop(0)
        elif isinstance(param.default, Name) and param.default.id[0] == "%":
            kept = m.lookup_from(m.parents.get(frame), f"{param.default.id[1:]}%default", state)
            state.env[(frame, param.name)] = kept if kept is not None else parameter(m, param, frame, state)
        elif param.default is not None and not open_ended:
            m.stack.append(Call(function, frame))
            state.env[(frame, param.name)] = evaluate.evaluate(m, param.default, state)
            m.stack.pop()
        else:
            state.env[(frame, param.name)] = parameter(m, param, frame, state)


def parameter(m: Interpreter, param, frame: int, state: State) -> Value:  # type: ignore[no-untyped-def]
    """An argument nobody gave: a symbol, or what its annotation says."""
    symbol = Symbol(f"{param.name}~{frame}", param.name)
    if (
        isinstance(param.default, Const)
        and isinstance(param.default.value, int | float)
        and not isinstance(param.default.value, bool)
    ):
        return Symbol(f"{symbol.key}#number", param.name)
    if param.annotation is None:
        return symbol
    note = evaluate.lookup_in(m, param.annotation, m.parents.get(frame, m.module.frame), state, None)
    if isinstance(note, Api):
        if note.name in apis.SCALERS:
            return Object(
                "scaler",
                symbol.key,
                api=note.name,
                facts=(("enabled", Symbol(f"{symbol.key}.enabled", "enabled")),),
                origin="annotated",
            )
        if note.name == "torch.optim.Optimizer" or apis.is_optimizer(note.name):
            return Object("optimizer", symbol.key, api=note.name, origin="annotated")
        if note.name in ("torch.Tensor", "torch.FloatTensor"):
            return Tensor(None, False, at=0)
        if note.name in ("torch.nn.Module", "torch.nn.Sequential", "torch.nn.parallel.DistributedDataParallel"):
            m.facts.setdefault("modules", set()).add(symbol.key)
        if note.name in ("torch.device",):
            return Object("device", symbol.key, api="torch.device", origin="annotated")
    return symbol


def escape(m: Interpreter, at: int, name: str, args: Args, state: State) -> None:
    """Scalers and optimizers that go to unseen code: nothing is known of them afterwards."""
    given = [item for _, value in args for item in flat(value)]
    for item in given:
        if isinstance(item, Tensor) and item.scaled:
            m.facts.setdefault("discarded", set()).add(item.scaled)  # the scaled loss lives on where nobody sees it
    handed = [item for item in given if isinstance(item, Object) and (item.role in ("scaler", "optimizer"))]
    symbols = [
        item for item in given if isinstance(item, Symbol) and (library.role_by_use(m, item) in ("scaler", "optimizer"))
    ]
    holders = [item for item in given if isinstance(item, Object) and item.role == "instance" and _holds(state, item)]
    if handed or symbols or holders:
        escaping: list[Value] = [*handed, *symbols]
        for item in escaping:
            m.emit(Escape(at, item), state)
        state.protocol = state.protocol.unknown()
    elif apis.DOES_BACKWARD.search(name) and (given or not args):
        state.protocol = state.protocol.unknown()


def _holds(state: State, instance: Object) -> bool:
    return any(
        owner == instance.oid and isinstance(value, Object) and value.role in ("scaler", "optimizer")
        for (owner, _), value in state.heap.items()
    )
