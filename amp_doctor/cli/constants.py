"""What expressions of a script may come to, read from its source: constants, or that it cannot be told.

Names are those of the whole project, whatever scope they are in: `device` is hardly ever two things in one script. The
machine is taken to have a GPU. Options of argparse and words such as `--dtype=float16` count with what was given.
"""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING, Any

from amp_doctor.cli.parameters import Parameters, dotted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Stands among constants for anything.
UNKNOWN = object()
# Names within names beyond this are not followed: they may go round.
DEEPEST = 8
# What only says how a value is wrapped: torch.device("cuda", 0), str(device), device.type, name.lower().
_WRAPS = ("torch.device", "device", "str", "bool", "int")
# Of dataclasses and their like: field(default="cuda").
_FIELDS = ("field", "Field")
_THROUGH = ("type", "lower", "strip")
_THERE = ("cuda.is_available", "accelerator.is_available", "cuda.is_bf16_supported", "is_torch_cuda_available")

Values = frozenset[Any]
_ANY: Values = frozenset({UNKNOWN})


def given(arguments: Sequence[str]) -> dict[str, str | bool]:
    """`--mixed-precision fp16`, `--fp16`, `trainer.precision=16` -> what is given by the last part of its name."""
    out: dict[str, str | bool] = {}
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if not equals and not name.startswith("-"):
            continue
        name = name.lstrip("-").replace("-", "_").rpartition(".")[2]
        following = arguments[index + 1] if index + 1 < len(arguments) else "-"
        out[name] = value if equals else True if following.startswith("-") else following
    return {name: _boolean(value) for name, value in out.items()}


def _boolean(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


class Constants:
    """The names of a project: assigned, defaults of parameters, and options of the command line."""

    def __init__(self, trees: Iterable[ast.AST], arguments: Sequence[str]) -> None:
        self._given = given(arguments)
        self._assigned: dict[str, list[ast.expr]] = {}
        self._parameters = Parameters()
        self._options: dict[str, Values] = {}
        # What a name comes to; while it is being asked for, nothing.
        self._met: dict[tuple[str, bool], Values] = {}
        for tree in trees:
            for node in ast.walk(tree):
                self._learn(node)
        self._parameters.bind()

    def options(self) -> dict[str, Values]:
        """The options of argparse by name, with what they come to."""
        return self._options

    def truth(self, node: ast.expr | None) -> bool | None:
        """Whether an expression holds; None where it may or may not."""
        return _truth(self.of(node)) if node is not None else None

    def of(self, node: ast.expr, depth: int = 0) -> Values:
        """All that it may be."""
        visit = _KINDS.get(type(node))
        found = visit(self, node, depth + 1) if visit is not None and depth < DEEPEST else _ANY
        # Names that lead back to themselves come to nothing on the way; asked for from outside that is anything.
        return found or (found if depth else _ANY)

    # --- what is learnt ---------------------------------------------------------------------------------------------

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            if not self._parameters.is_field(node):
                self._assign(node.target, node.value)
        else:
            self._parameters.learn(node)
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "add_argument":
                self._option(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for one, part in zip(target.elts, value.elts, strict=False):
                self._assign(one, part)
        name = dotted(target).rpartition(".")[2]
        # `device = torch.device(device)` says nothing new.
        if name and not (isinstance(value, ast.Name) and value.id == name):
            self._assigned.setdefault(name, []).append(value)

    def _option(self, call: ast.Call) -> None:
        flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if not flags:
            return
        told = {one.arg: one.value for one in call.keywords if one.arg}
        none = frozenset[Any]({None})
        action, default, dest = (self.of(told[key]) if key in told else none for key in ("action", "default", "dest"))
        long = next((flag for flag in flags if flag.startswith("--")), flags[0])
        first = next(iter(dest))
        name = first if isinstance(first, str) else long.lstrip("-").replace("-", "_")
        met = [self._given[key] for flag in flags if (key := flag.lstrip("-").replace("-", "_")) in self._given]
        if "store_true" in action:
            self._options[name] = frozenset({True}) if met else frozenset({False}) if default == none else default
        elif "store_false" in action:
            self._options[name] = frozenset({not met})
        else:
            self._options[name] = frozenset(met[-1:]) or default

    # --- the kinds of expressions -----------------------------------------------------------------------------------

    def _name(self, node: ast.Name | ast.Attribute, depth: int) -> Values:
        if isinstance(node, ast.Attribute) and node.attr in _THROUGH:
            return self.of(node.value, depth)
        name = node.id if isinstance(node, ast.Name) else node.attr
        key = name, isinstance(node, ast.Attribute)
        if key not in self._met:
            self._met[key] = frozenset()
            self._met[key] = self._named(*key, depth)
        return self._met[key]

    def _named(self, name: str, attribute: bool, depth: int) -> Values:
        """Of `args.name`, or of `name`."""
        if name in self._options and (attribute or name not in self._assigned):
            return self._options[name]
        known = self._parameters
        if name in self._given and (name in self._assigned or known.has_default(name)):
            return frozenset({self._given[name]})
        found = self._union([*self._assigned.get(name, ()), *known.fields(name)], depth)
        if found:
            return found
        # Not assigned, or, as in `self.device = torch.device(device)`, from a parameter of the same name.
        others = [*known.passed(name), *known.defaults(name)]
        return self._union(others, depth) if others or name in self._assigned else _ANY

    def _union(self, nodes: Iterable[ast.expr], depth: int) -> Values:
        return frozenset().union(*(self.of(one, depth) for one in nodes))

    def _call(self, node: ast.Call, depth: int) -> Values:
        name = dotted(node.func)
        if name.endswith(_THERE):
            return frozenset({True})
        if name in _WRAPS and node.args:
            return self.of(node.args[0], depth)
        if name.rpartition(".")[2] in _FIELDS:
            told = [one.value for one in node.keywords if one.arg == "default"]
            return self.of(told[0], depth) if told else _ANY
        if name in ("os.environ.get", "os.getenv") and node.args:
            default = self.of(node.args[1], depth) if len(node.args) > 1 else frozenset({None})
            keys = [key for key in self.of(node.args[0], depth) if isinstance(key, str) and key in os.environ]
            return frozenset(os.environ[key] for key in keys) or default
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in _THROUGH:
                return self.of(node.func.value, depth)
            if node.func.attr == "startswith" and node.args:
                pairs = self._pairs(node.func.value, node.args[0], depth)
                return _each(pairs, lambda whole, start: str(whole).startswith(str(start)))
        return _ANY

    def _choice(self, node: ast.IfExp, depth: int) -> Values:
        held = _truth(self.of(node.test, depth))
        chosen = [one for one, when in ((node.body, True), (node.orelse, False)) if held in (when, None)]
        return self._union(chosen, depth)

    def _either(self, node: ast.BoolOp, depth: int) -> Values:
        decisive = isinstance(node.op, ast.Or)
        out: Values = frozenset()
        for one in node.values:
            found = self.of(one, depth)
            held = _truth(found)
            if held is decisive:
                return out | found
            out |= found if held is None else frozenset()
        return out | frozenset({not decisive})

    def _not(self, node: ast.UnaryOp, depth: int) -> Values:
        held = _truth(self.of(node.operand, depth))
        return _ANY if held is None or not isinstance(node.op, ast.Not) else frozenset({not held})

    def _compare(self, node: ast.Compare, depth: int) -> Values:
        test = _COMPARED.get(type(node.ops[0]))
        if len(node.ops) > 1 or test is None:
            return _ANY
        return _each(self._pairs(node.left, node.comparators[0], depth), test)

    def _text(self, node: ast.JoinedStr, depth: int) -> Values:
        first = node.values[0] if node.values else ast.Constant("")
        if isinstance(first, ast.FormattedValue):
            return self.of(first.value, depth)
        return self.of(first, depth)

    def _several(self, node: ast.Tuple | ast.List | ast.Set, depth: int) -> Values:
        parts = [self.of(one, depth) for one in node.elts]
        told = all(len(one) == 1 and UNKNOWN not in one for one in parts)
        return frozenset({tuple(next(iter(one)) for one in parts)}) if told else _ANY

    def _pairs(self, left: ast.expr, right: ast.expr, depth: int) -> list[tuple[Any, Any]]:
        return [(one, two) for one in self.of(left, depth) for two in self.of(right, depth)]


_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda one, two: one == two,
    ast.NotEq: lambda one, two: one != two,
    ast.Is: lambda one, two: one is two,
    ast.IsNot: lambda one, two: one is not two,
    ast.In: lambda one, two: one in two,
    ast.NotIn: lambda one, two: one not in two,
}
_KINDS: dict[type[ast.expr], Callable[[Constants, Any, int], Values]] = {
    ast.Constant: lambda _, node, _depth: frozenset({node.value}),
    ast.Name: Constants._name,
    ast.Attribute: Constants._name,
    ast.Call: Constants._call,
    ast.IfExp: Constants._choice,
    ast.BoolOp: Constants._either,
    ast.UnaryOp: Constants._not,
    ast.Compare: Constants._compare,
    ast.JoinedStr: Constants._text,
    ast.Tuple: Constants._several,
    ast.List: Constants._several,
    ast.Set: Constants._several,
}


def _truth(values: Values) -> bool | None:
    if UNKNOWN in values or not values:
        return None
    held = {bool(one) for one in values}
    return held.pop() if len(held) == 1 else None


def _each(pairs: list[tuple[Any, Any]], test: Callable[[Any, Any], bool]) -> Values:
    out = set()
    for one, two in pairs:
        try:
            out.add(UNKNOWN if UNKNOWN in (one, two) else test(one, two))
        except TypeError:
            out.add(UNKNOWN)
    return frozenset(out)
