"""Where interpretation starts: the module body, every function, every method of every class.

Methods start from what `__init__` (and other methods that set up scalers, optimizers or contexts) left in
`self`; a `forward` is believed to run under autocast when the file calls unknown models inside a region.
"""

from __future__ import annotations

from amp_doctor.lint import paths
from amp_doctor.lint.checks.registry import Finished
from amp_doctor.lint.fold import fold
from amp_doctor.lint.machine import entry, instances, telling
from amp_doctor.lint.machine.interpreter import Call, Interpreter, OutOfBudget
from amp_doctor.lint.project import definitions
from amp_doctor.lint.state import State
from amp_doctor.lint.trace import Attr, Branch, Define, Function, Seq, Stmt, Try, With
from amp_doctor.lint.typestate import Protocol

# Ends of the module body that functions are read from.
MAX_ROOTS = 4


def interpret(m: Interpreter) -> None:
    """Run every entry point of the file and show the checks what happens."""
    for reference in m.module.references:
        m.report(m, reference, State())  # type: ignore[arg-type]
    roots = _module(m)
    methods = {id(function) for definition in m.module.classes for function in definition.methods.values()}
    plain = [function for function in m.module.functions if id(function) not in methods and function.name != "<lambda>"]
    leading = m.module.slicer.relevant | {
        definition.name
        for definition in m.module.classes
        if any(telling.rooted(f.words) or _half_by_default(f) for f in definition.methods.values())
    }
    try:
        for function in plain:
            if _top_level(m, function) and (telling.rooted(function.words) or function.words & leading):
                for root in roots:
                    entry.run(m, function, root.copy())
        for function in _callers(m, plain):
            for root in roots:
                entry.run(m, function, root.copy())
        for definition in m.module.classes:
            if not any(telling.rooted(function.words) for function in definition.methods.values()):
                continue
            for root in roots[:2]:
                instances.methods(m, definition, root.copy())
        instances.trainers(m)
        instances.forwards(m, roots[0])
    except OutOfBudget:
        m.silences += 1
    m.report(m, Finished(tuple(m.log)), State())  # type: ignore[arg-type]


def _half_by_default(function: Function) -> bool:
    """A parameter that is float16 unless something else is given."""
    return any(
        isinstance(param.default, Attr) and param.default.name in ("float16", "half") for param in function.params
    )


def _callers(m: Interpreter, functions: list[Function]) -> list[Function]:
    """Functions that only call, in a loop, one that makes a scaler: what it makes there does not last."""
    makers = {function.name for function in functions if "GradScaler" in function.words}
    return [
        function
        for function in functions
        if _top_level(m, function)
        and not telling.rooted(function.words)
        and function.words & makers
        and any(site.loops and site.method in makers for site in paths.calls(function.body))
    ]


def _top_level(m: Interpreter, function: Function) -> bool:
    """Nested functions are run where they are called, with what they close over."""
    return function.owner is None and function.at in _defined(m)


def _defined(m: Interpreter) -> set[int]:
    if "top" not in m.facts:
        found: set[int] = set()

        def walk(node: object) -> None:
            match node:
                case Seq(items):
                    for item in items:
                        walk(item)
                case Stmt(_, body):
                    walk(body)
                case Branch(_, _, then, other):
                    walk(then)
                    walk(other)
                case Try(_, body, handlers, other, final):
                    for part in (body, *handlers, other, final):
                        walk(part)
                case With(_, _, _, body):
                    walk(body)
                case Define(_, function):
                    found.add(function.at)

        walk(m.module.body)
        m.facts["top"] = found
    top: set[int] = m.facts["top"]
    return top


def _module(m: Interpreter) -> list[State]:
    """Run the module body; the states it ends in are what functions find as globals."""
    function = Function(m.module.number, "<module>", (), m.module.body, module=m.module.number)
    m.stack.append(Call(function, m.module.frame))
    state = State()
    # A script is in nobody's hands before it starts: no gradients, no scaler in use.
    state.protocol = Protocol().zeroed(None)
    try:
        flow = fold(m.module.slicer.slice(function), [state], m)
        ends = flow.ends + flow.exits.get("raise", [])
    except OutOfBudget:
        m.silences += 1
        m.spent = 0
        ends = []
    finally:
        m.stack.clear()
    if not ends:
        ends = _definitions_only(m)
    _share(m, ends)
    roots: dict[object, State] = {}
    words = frozenset(word for function in m.module.functions for word in function.words)
    for end in ends:
        root = end.copy()
        root.regions, root.modes, root.protocol = (), (), Protocol()
        key = (
            frozenset((name, value) for name, value in root.env.items() if name[1] in words),
            frozenset(root.known.items()),
        )
        roots.setdefault(key, root)
    return list(roots.values())[:MAX_ROOTS]


def _share(m: Interpreter, ends: list[State]) -> None:
    """What every path agrees on becomes the file's globals; states keep only what tells them apart."""
    if not ends:
        return
    frame = m.module.frame
    first, *others = ends
    common = {
        name: value
        for (where, name), value in first.env.items()
        if where == frame and all(other.env.get((frame, name)) == value for other in others)
    }
    m.globals[frame] = {name: value for name, value in common.items() if not name.startswith("%")}
    for end in ends:
        for name in common:
            del end.env[(frame, name)]
        for key in [key for key in end.env if key[1].startswith("%")]:
            del end.env[key]


def _definitions_only(m: Interpreter) -> list[State]:
    """A module that never ends (sys.exit, an endless loop): its definitions are still its globals."""
    function = Function(m.module.number, "<module>", (), m.module.body, module=m.module.number)
    m.stack.append(Call(function, m.module.frame))
    m.quiet += 1
    try:
        flow = fold(definitions(m.module.body), [State()], m)
    except OutOfBudget:
        m.silences += 1
        m.spent = 0
        return [State()]
    finally:
        m.quiet -= 1
        m.stack.clear()
    return flow.ends or [State()]
