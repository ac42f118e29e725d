"""Calls of first-party code: functions and classes are followed, parameters bound, decorators entered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint import apis
from amp_doctor.lint.events import Args, Construct
from amp_doctor.lint.fold import fold
from amp_doctor.lint.machine import arguments, classes, constructors, contexts, escapes, evaluate, modules
from amp_doctor.lint.objects import (
    NONE,
    Api,
    Class,
    Code,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
    Tensor,
    Value,
    flat,
    text,
)
from amp_doctor.lint.trace import Const, Name

if TYPE_CHECKING:
    from amp_doctor.lint.machine.calls import Outcome
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State
    from amp_doctor.lint.trace import Function, Param


def call_super(m: Interpreter, at: int, receiver: Object, name: str, args: Args, state: State) -> Outcome:
    """`super().name(...)`: the method of the first base that has it."""
    instance = receiver.fact("self")
    if isinstance(instance, Object) and receiver.cls is not None:
        for base in classes.bases_of(m, receiver.cls, state):
            if isinstance(base, Class):
                found = classes.find_method(m, base, name, state)
                if found is not None:
                    return call_code(m, at, Code(found[0], found[1], instance), args, state)
        if instance.role == "optimizer" and name == "step":
            return [(NONE, state)]
    if name == "__init__":
        return [(NONE, state)]
    return [(arguments.opaque(m, at, args, state), state)]


def instantiate(m: Interpreter, at: int, cls: Class, args: Args, state: State) -> Outcome:
    """Call a first-party class."""
    bases = classes.api_bases(m, cls, state)
    oid = f"{cls.definition.name}@{at}.{m.here}"
    if any(apis.is_optimizer(base) or base.endswith("Optimizer") for base in bases):
        optimizer = constructors.make_optimizer(m, at, cls.definition.name, args, state)
        return [(replace(optimizer, cls=cls), state)]
    if any(base in apis.SCALERS for base in bases):
        return [(constructors.make_scaler(m, at, "torch.amp.GradScaler", (), state), state)]
    instance = Object(
        "instance", oid, api=cls.definition.name, at=at, cls=cls, facts=modules.class_facts(m, cls, state)
    )
    for stale in [place for place in state.heap if place[0] == oid]:
        del state.heap[stale]
    found = classes.find_method(m, cls, "__init__", state)
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
    from amp_doctor.lint.machine.interpreter import MAX_DEPTH, Call

    function = code.function
    recursive = any(call.function is function for call in m.stack)
    if recursive or len(m.stack) > MAX_DEPTH or function.is_generator:
        if not function.is_generator:
            m.silences += 1
        escapes.escape(m, function.name, args, state)
        return [(arguments.opaque(m, at, args, state), state)]
    frame = m.frame(m.here, at + (m.calls[-1] if m.calls else 0) * 7919, function.at)
    m.parents[frame] = code.frame
    bind_parameters(m, function, code.receiver, args, frame, state)
    marks, regions = state.modes, state.regions
    for context in decorator_contexts(function, code.frame, state):
        contexts.enter(m, function.at, context, None, state)
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
        outcome.append((modules.compiled(code, value, end), end))
    return settled(outcome)


def settled(outcome: Outcome) -> Outcome:
    """The outcomes that differ, the first of them only when there are too many."""
    if len(outcome) < 2:
        return outcome
    kept: Outcome = []
    for value, state in outcome:
        if not any(value == known and state.same(other) for known, other in kept):
            kept.append((value, state))
    return kept[:24]


def decorator_contexts(function: Function, frame: int, state: State) -> list[Value]:
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


def bind_parameters(
    m: Interpreter, function: Function, receiver: Value | None, args: Args, frame: int, state: State
) -> None:
    """Give the parameters of a function their arguments, defaults, or symbols of their own."""
    from amp_doctor.lint.machine.interpreter import Call

    params = list(function.params)
    plain = arguments.positional(args)
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


def parameter(m: Interpreter, param: Param, frame: int, state: State) -> Value:
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
    note = classes.lookup_in(m, param.annotation, m.parents.get(frame, m.module.frame), state, None)
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
