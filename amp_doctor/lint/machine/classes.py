"""First-party classes: how they are defined, and their bases, methods, properties and attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.lint.fold import fold
from amp_doctor.lint.machine import binding, evaluate
from amp_doctor.lint.objects import (
    Api,
    Class,
    Code,
    Object,
    Symbol,
    Value,
    text,
)
from amp_doctor.lint.trace import (
    Attr,
    ClassDef,
    Exit,
    Function,
    Name,
    Stmt,
    Term,
)

if TYPE_CHECKING:
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def property_value(m: Interpreter, code: Code, base: Object, state: State) -> Value:
    """A property that returns a plain attribute is that attribute; any other is a symbol of its own."""
    statements = code.function.body.items
    if len(statements) == 1 and isinstance(statements[0], Stmt):
        inner = statements[0].body.items
        if len(inner) == 1 and isinstance(inner[0], Exit) and inner[0].value is not None:
            value = inner[0].value
            reading: set[int] = m.facts.setdefault("properties", set())
            own = isinstance(value, Attr) and isinstance(value.base, Name) and value.base.id == _first(code.function)
            if isinstance(value, Attr) and own and id(code.function) not in reading:
                reading.add(id(code.function))  # a property may come back to itself
                found = evaluate.attribute(m, base, value.name, value.at, state)
                reading.remove(id(code.function))
                return found
    return Symbol(f"{base.oid}.{code.function.name}", code.function.name)


def _first(function: Function) -> str:
    return function.params[0].name if function.params else ""


def bases_of(m: Interpreter, cls: Class, state: State) -> list[Value]:
    """The bases of a first-party class, as values in the frame that defined it."""
    key = f"bases:{text(cls)}@{cls.definition.at}"
    if key not in m.facts:
        saved, m.stack = m.stack, []
        module = m.owners.get(cls.definition.module)
        try:
            m.facts[key] = [
                (m.project.settle(m, found) if isinstance(found, Symbol) else found)
                if found is not None
                else Symbol(binding.term_name(term), binding.term_name(term))
                for term in cls.definition.bases
                for found in [lookup_in(m, term, cls.frame, state, module)]
            ]
        finally:
            m.stack = saved
    result: list[Value] = m.facts[key]
    return result


def lookup_in(m: Interpreter, term: Term, frame: int, state: State, module: Any) -> Value | None:
    """Evaluate a dotted name in a given frame."""
    match term:
        case Name(_, name):
            current: int | None = frame
            while current is not None:
                value = state.env.get((current, name)) or m.globals.get(current, {}).get(name)
                if value is not None:
                    return value
                current = m.parents.get(current)
            return None
        case Attr(at, base, name):
            inner = lookup_in(m, base, frame, state, module)
            return evaluate.attribute(m, inner, name, at, state) if inner is not None else None
        case _:
            return None


def find_method(m: Interpreter, cls: Class, name: str, state: State, depth: int = 0) -> tuple[Function, int] | None:
    """A method of a first-party class or of its first-party bases, with the frame it closes over."""
    if name in cls.definition.methods:
        return cls.definition.methods[name], cls.frame
    if depth < 6:
        for base in bases_of(m, cls, state):
            if isinstance(base, Class) and base.definition is not cls.definition:
                found = find_method(m, base, name, state, depth + 1)
                if found is not None:
                    return found
    return None


def class_attribute(m: Interpreter, cls: Class, name: str, state: State, depth: int = 0) -> Value | None:
    """An attribute set in the body of a first-party class or of one of its first-party bases."""
    value = state.heap.get((text(cls), name))
    if value is not None or depth > 5:
        return value
    for base in bases_of(m, cls, state):
        if isinstance(base, Class):
            value = class_attribute(m, base, name, state, depth + 1)
            if value is not None:
                return value
    return None


def api_bases(m: Interpreter, cls: Class, state: State, depth: int = 0) -> list[str]:
    """The names of the library classes (and of unseen ones) that a first-party class derives from."""
    found: list[str] = []
    for base in bases_of(m, cls, state):
        if isinstance(base, Class):
            if depth < 6:
                found += api_bases(m, base, state, depth + 1)
        elif isinstance(base, (Api, Symbol)):
            found.append(base.name)
    return found


def define_class(m: Interpreter, definition: ClassDef, state: State) -> list[State]:
    """Bind the class, and its class attributes (bodies are run in a frame of their own)."""
    from amp_doctor.lint.machine.interpreter import Call

    cls = Class(definition, m.here)
    frame = m.frame(m.here, 0, definition.at)
    m.parents[frame] = m.here
    body = Function(definition.at, definition.name, (), definition.body, module=definition.module)
    m.stack.append(Call(body, frame))
    try:
        flow = fold(definition.body, [state], m)
    finally:
        m.stack.pop()
    for end in flow.ends:
        for (where, name), value in list(end.env.items()):
            if where == frame:
                if not isinstance(value, Code):
                    end.heap[(text(cls), name)] = value
                del end.env[(where, name)]
        end.env[(m.here, definition.name)] = cls
    return flow.ends
