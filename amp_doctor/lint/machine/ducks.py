"""Unknown objects taken for the one first-party class that fits their use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.lint.machine import classes, evaluate, follow, modules
from amp_doctor.lint.objects import (
    Class,
    Code,
    Literal,
    Object,
    Symbol,
    Value,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


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
        facts=modules.class_facts(m, cls, state),
    )
    if (receiver.key, "%seeded") not in state.heap:
        state.heap[(receiver.key, "%seeded")] = Literal(True)
        found = classes.find_method(m, cls, "__init__", state)
        if found is not None and len(m.stack) < 4:
            m.quiet += 1
            try:
                outcome = follow.call_code(m, cls.definition.at, Code(found[0], found[1], instance), (), state.copy())
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
