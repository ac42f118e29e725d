"""Where interpretation starts: the module body, every function, every method of every class.

Methods start from what `__init__` (and other methods that set up scalers, optimizers or contexts) left in
`self`; a `forward` is believed to run under autocast when the file calls unknown models inside a region.
"""

from __future__ import annotations

from amp_doctor.lint import paths
from amp_doctor.lint.checks.registry import Finished
from amp_doctor.lint.fold import fold
from amp_doctor.lint.machine import classes, follow, modules, telling
from amp_doctor.lint.machine.interpreter import BUDGET, SHARE, Call, Interpreter, OutOfBudget
from amp_doctor.lint.objects import Class, Object, flat
from amp_doctor.lint.project import definitions
from amp_doctor.lint.state import Region, State
from amp_doctor.lint.trace import Attr, Branch, ClassDef, Define, Function, Name, Seq, Stmt, Try, With
from amp_doctor.lint.typestate import Optimizer, Protocol

MAX_SEEDS = 4


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
                    _run_function(m, function, root.copy())
        for function in _callers(m, plain):
            for root in roots:
                _run_function(m, function, root.copy())
        for definition in m.module.classes:
            if not any(telling.rooted(function.words) for function in definition.methods.values()):
                continue
            for root in roots[:2]:
                _class(m, definition, root.copy())
        _trainers(m)
        _forwards(m, roots[0])
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
    return list(roots.values())[:MAX_SEEDS]


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


def _run_function(m: Interpreter, function: Function, state: State, receiver: Object | None = None) -> list[State]:
    """Run a function as an entry: nobody knows its arguments or what happened before."""
    frame = m.frame(m.module.frame, 0, function.at)
    m.parents[frame] = m.module.frame
    body_state = state
    for param in function.params:
        body_state.env[(frame, param.name)] = follow.parameter(m, param, frame, body_state)
    if receiver is not None and function.params:
        body_state.env[(frame, function.params[0].name)] = receiver
    for context in follow.decorator_contexts(function, m.module.frame, body_state):
        m.enter_context(function.at, context, None, body_state)
    m.stack.append(Call(function, frame))
    m.limit = m.spent + SHARE
    try:
        return m.run(m.body(function, body_state), body_state)
    except OutOfBudget:
        m.silences += 1
        if m.spent > BUDGET:
            raise
        return []
    finally:
        m.limit = BUDGET
        m.stack.clear()
        m.loops.clear()
        m.guards.clear()
        m.conditions.clear()
        m.calls.clear()


def _class(m: Interpreter, definition: ClassDef, root: State) -> None:
    cls = Class(definition, m.module.frame)
    value = classes.lookup_in(m, Name(0, definition.name), m.module.frame, root, None)
    if isinstance(value, Class) and value.definition is definition:
        cls = value
    module = modules.class_facts(m, cls, root)
    receiver = Object("instance", f"self:{definition.name}", api=definition.name, cls=cls, origin="used", facts=module)
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
            _run_function(m, function, state, None if _static(function) else receiver)


def _held(state: State) -> Protocol:
    """The protocol at the start of a method: the optimizers that are held somewhere exist, all else is unknown."""
    protocol = Protocol()
    for value in (*state.heap.values(), *state.env.values()):
        for item in flat(value):
            if isinstance(item, Object) and item.role == "optimizer":
                protocol = protocol.put(item.oid, Optimizer())
    return protocol


def _trainers(m: Interpreter) -> None:
    """The methods of objects that were built with known arguments, which the class alone does not tell."""
    for instance, built in m.trainers:
        cls = instance.cls
        while cls is not None and cls.frame == m.module.frame:
            for name, function in cls.definition.methods.items():
                if name != "__init__" and not _static(function) and function.words & {"step", "unscale_"}:
                    state = built.copy()
                    state.regions, state.modes, state.protocol = (), (), Protocol()
                    _run_function(m, function, state, instance)
            cls = next((base for base in classes.bases_of(m, cls, built) if isinstance(base, Class)), None)


def _seeds(m: Interpreter, cls: Class, receiver: Object, root: State) -> list[State]:
    """The states `self` can be in when a method is called: after __init__ and the methods that set things up."""
    states = [root]
    found = classes.find_method(m, cls, "__init__", root)
    if found is not None:
        states = [
            state
            for each in states
            for state in _run_quietly(m, found[0], each, receiver, quiet=found[0].owner is not cls.definition)
        ] or [root]
    for name, function in cls.definition.methods.items():
        if name != "__init__" and not _static(function) and _sets_up(function):
            after = [
                state
                for each in states[:MAX_SEEDS]
                for state in _run_quietly(m, function, each.copy(), receiver, quiet=True)
            ]
            states = after or states
    return _distinct(states)[:MAX_SEEDS]


def _run_quietly(m: Interpreter, function: Function, state: State, receiver: Object, quiet: bool) -> list[State]:
    m.quiet += quiet
    try:
        return _run_function(m, function, state.copy(), receiver)
    finally:
        m.quiet -= quiet


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


def _forwards(m: Interpreter, root: State) -> None:
    """The forward of each module class, under the region its file is believed to call it in."""
    region = m.facts.get("presumed")
    for definition in m.module.classes:
        cls = Class(definition, m.module.frame)
        receiver = Object(
            "instance",
            f"self:{definition.name}",
            api=definition.name,
            cls=cls,
            origin="used",
            facts=modules.class_facts(m, cls, root),
        )
        if not modules.is_module_value(receiver) or "forward" not in definition.methods:
            continue
        if not isinstance(region, Region) and not telling.rooted(definition.methods["forward"].words):
            continue
        for seed in _seeds(m, cls, receiver, root.copy())[:3]:
            state = seed.copy()
            if isinstance(region, Region):
                state.regions = (region,)
            _run_function(m, definition.methods["forward"], state, receiver)


def _static(function: Function) -> bool:
    return any(isinstance(term, Name) and term.id in ("staticmethod", "classmethod") for term in function.decorators)
