"""Methods of first-party classes as entry points, with what is known of `self`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint.machine import classes, entry, modules, telling
from amp_doctor.lint.objects import Class, Object, flat
from amp_doctor.lint.state import Region, State
from amp_doctor.lint.trace import ClassDef, Function, Name
from amp_doctor.lint.typestate import Optimizer, Protocol

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter

# States of `self` that are followed.
MAX_SEEDS = 4


def methods(m: Interpreter, definition: ClassDef, root: State) -> None:
    """The methods of a class that can matter, from the states that the others leave in `self`; `forward` is apart."""
    cls = Class(definition, m.module.frame)
    value = classes.lookup_in(m, Name(0, definition.name), m.module.frame, root, None)
    if isinstance(value, Class) and value.definition is definition:
        cls = value
    receiver = _self(m, cls, root)
    apart = ("__init__", "forward") if modules.is_module_value(receiver) else ("__init__",)
    running = [
        function
        for name, function in definition.methods.items()
        if name not in apart and (telling.rooted(function.words) or function.words & m.module.slicer.relevant)
    ]
    made = definition.methods.get("__init__")
    if not running and "forward" in apart and not (made is not None and telling.rooted(made.words)):
        return  # its forward is run apart, from seeds of its own
    seeds = _seeds(m, cls, receiver, root)
    for function in running:
        for seed in seeds:
            state = seed.copy()
            state.protocol = _held(state)
            entry.run(m, function, state, None if _static(function) else receiver)


def trainers(m: Interpreter) -> None:
    """The methods of objects that were built with known arguments, which the class alone does not tell."""
    for instance, built in m.trainers:
        cls = instance.cls
        while cls is not None and cls.frame == m.module.frame:
            for name, function in cls.definition.methods.items():
                if name != "__init__" and not _static(function) and function.words & {"step", "unscale_"}:
                    state = built.copy()
                    state.regions, state.modes, state.protocol = (), (), Protocol()
                    entry.run(m, function, state, instance)
            cls = next((base for base in classes.bases_of(m, cls, built) if isinstance(base, Class)), None)


def forwards(m: Interpreter, root: State) -> None:
    """The forward of each module class, under the region its file is believed to call it in."""
    region = m.facts.get("presumed")
    for definition in m.module.classes:
        cls = Class(definition, m.module.frame)
        receiver = _self(m, cls, root)
        if not modules.is_module_value(receiver) or "forward" not in definition.methods:
            continue
        if not isinstance(region, Region) and not telling.rooted(definition.methods["forward"].words):
            continue
        for seed in _seeds(m, cls, receiver, root.copy())[:3]:
            state = seed.copy()
            if isinstance(region, Region):
                state.regions = (region,)
            entry.run(m, definition.methods["forward"], state, receiver)


def _self(m: Interpreter, cls: Class, root: State) -> Object:
    name = cls.definition.name
    facts = modules.class_facts(m, cls, root)
    return Object("instance", f"self:{name}", api=name, cls=cls, origin="used", facts=facts)


def _held(state: State) -> Protocol:
    """The protocol at the start of a method: the optimizers that are held somewhere exist, all else is unknown."""
    protocol = Protocol()
    for value in (*state.heap.values(), *state.env.values()):
        for item in flat(value):
            if isinstance(item, Object) and item.role == "optimizer":
                protocol = protocol.put(item.oid, Optimizer())
    return protocol


def _seeds(m: Interpreter, cls: Class, receiver: Object, root: State) -> list[State]:
    """The states `self` can be in when a method is called: after __init__ and the methods that set things up."""
    states = [root]
    found = classes.find_method(m, cls, "__init__", root)
    if found is not None:
        states = [
            state
            for each in states
            for state in entry.run_quietly(m, found[0], each, receiver, quiet=found[0].owner is not cls.definition)
        ] or [root]
    for name, function in cls.definition.methods.items():
        if name != "__init__" and not _static(function) and _sets_up(function):
            after = [
                state
                for each in states[:MAX_SEEDS]
                for state in entry.run_quietly(m, function, each.copy(), receiver, quiet=True)
            ]
            states = after or states
    return _distinct(states)[:MAX_SEEDS]


def _sets_up(function: Function) -> bool:
    """A method that makes a scaler, an optimizer or a context and stores it, and does not train with it."""
    return bool(function.words & {"GradScaler", "autocast", "nullcontext"}) and not function.words & {
        "backward",
        "scale",
        "step",
    }


def _distinct(states: list[State]) -> list[State]:
    kept: list[State] = []
    for state in states:
        for key in [key for key in state.env if key[0] >= 1000]:
            del state.env[key]
        state.regions, state.modes, state.protocol = (), (), Protocol()
        state.temps = {}
        if not any(state.same(other) for other in kept):
            kept.append(state)
    return kept


def _static(function: Function) -> bool:
    return any(isinstance(term, Name) and term.id in ("staticmethod", "classmethod") for term in function.decorators)
