"""AMP119 to AMP121, AMP125 and AMP126: custom autograd functions under autocast."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from amp_doctor.finding import Applicability, Edit, Fix
from amp_doctor.lint.apis import FLOAT32_OPS, LOWER_PRECISION
from amp_doctor.lint.checks import mentions
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, Reference, check
from amp_doctor.lint.events import OpCall
from amp_doctor.lint.machine.classes import api_bases
from amp_doctor.lint.objects import Class
from amp_doctor.lint.trace import Attr, Binary, CallLeaf, ClassDef, Function, Name, Term

if TYPE_CHECKING:
    from collections.abc import Iterator

_CUSTOM = re.compile(r"torch\.(?:(?:cuda|cpu)\.)?amp\.(?:autocast_mode\.)?custom_(fwd|bwd)$")
_PLAIN = ("staticmethod", "classmethod", "once_differentiable")
_CASTS = ("float", "half", "bfloat16", "double", "to", "type", "type_as")
_EXTENSION = re.compile(r"(^|[._])(_C|cuda|cu|kernels?|ext|extension|cpp|backend|fused)($|[._])")


def _decorators(at: Moment[Any], function: Function) -> tuple[dict[str, Reference], bool]:
    """The custom_fwd and custom_bwd above a method, and whether other decorators may hide them."""
    facts = at.interpreter.facts
    if "custom" not in facts:
        facts["custom"] = {one.at: one for one in at.module.references if _CUSTOM.match(one.name)}
    found: dict[str, Reference] = {}
    hidden = False
    for term in function.decorators:
        reference = facts["custom"].get(term.at)
        kind = _CUSTOM.match(reference.name) if reference is not None else None
        if reference is not None and kind is not None:
            found[kind[1]] = reference
        else:
            name = term.id if isinstance(term, Name) else term.name if isinstance(term, Attr) else ""
            hidden = hidden or name not in _PLAIN
    return found, hidden


def _pairs(at: Moment[Any]) -> Iterator[tuple[Function, Function]]:
    """The forward and backward of each class of the file that has both."""
    for definition in at.module.classes:
        forward, backward = definition.methods.get("forward"), definition.methods.get("backward")
        if forward is not None and backward is not None:
            yield forward, backward


@check("AMP119", on=Finished)
def backward_alone(at: Moment[Finished]) -> Iterator[Draft]:
    for forward, backward in _pairs(at):
        (ahead, hidden), (back, _) = _decorators(at, forward), _decorators(at, backward)
        if "bwd" in back and "fwd" not in ahead and not hidden:
            fix = _partner(at, back["bwd"], forward, "fwd")
            words = "custom_bwd without custom_fwd: backward reads what only custom_fwd records"
            yield at.finding(words, at=back["bwd"].at, fix=fix)


@check("AMP120", on=Finished)
def forward_alone(at: Moment[Finished]) -> Iterator[Draft]:
    for forward, backward in _pairs(at):
        (ahead, _), (back, hidden) = _decorators(at, forward), _decorators(at, backward)
        one = ahead.get("fwd")
        if one is None or back or hidden or not _listed(at, backward) or _casts_inputs(one):
            continue
        fix = _partner(at, one, backward, "bwd")
        words = "custom_fwd without custom_bwd: backward may run in another autocast state than forward"
        yield at.finding(words, at=one.at, fix=fix)


def _casts_inputs(reference: Reference) -> bool:
    """custom_fwd gets cast_inputs, or may get it."""
    return any(key in ("cast_inputs", "**") for key, _ in reference.args)


def _partner(at: Moment[Any], reference: Reference, method: Function, kind: str) -> Fix | None:
    """A fix that puts the other decorator above a method."""
    mention = mentions.mention(at, reference)
    known = mentions.names(at)
    if mention is None or known is None or not re.search(r"\bcustom_[fb]wd$", mention.text):
        return None
    name = f"{mention.text[:-3]}{kind}"
    if "." not in name and name not in known.module.imports:
        return None
    device = mentions.argument(reference, 9, "device_type") if reference.how == "call" else None
    arguments = f"({at.text(device[1])})" if device is not None else ""
    start, _ = at.module.places.bytes_of(method.at)
    line = known.raw.rfind(b"\n", 0, start) + 1
    indent = known.raw[line:start].decode()
    if indent.strip():
        return None
    edit = Edit(start, start, f"@{name}{arguments}{at.module.places.newline()}{indent}")
    return at.fix(f"decorate {method.name} with custom_{kind}", Applicability.UNSAFE, edit)


@check("AMP121", on=Reference)
def without_device(at: Moment[Reference]) -> Iterator[Draft]:
    reference = at.event
    kind = _CUSTOM.match(reference.name)
    if kind is None or not reference.name.startswith("torch.amp.") or reference.how not in ("call", "decorator"):
        return
    if reference.guarded or any(key in ("device_type", "*", "**") for key, _ in reference.args):
        return
    if mentions.mention(at, reference) is None:
        return
    device = 'device_type="cuda"'
    if reference.how == "decorator":
        edit = at.replace(reference.at, f"{at.text(reference.at)}({device})")
    elif reference.args and reference.args[0][0] is None:
        edit = mentions.put_last(at, reference, device)
    else:
        edit = mentions.put_first(at, reference, device)
    fix = at.fix('add device_type="cuda"', Applicability.UNSAFE, edit)
    yield at.finding(f"custom_{kind[1]} without device_type: torch.amp raises TypeError", fix=fix)


@check("AMP125", on=OpCall)
def undecorated(at: Moment[OpCall]) -> Iterator[Draft]:
    region = at.region()
    cls = at.event.receiver
    if at.event.name != "Function.apply" or not isinstance(cls, Class) or region is None or region.presumed:
        return
    definition = cls.definition
    if at.decide(region.enabled) is None or at.home(definition.at) is not at.module:
        return
    forward, backward = definition.methods.get("forward"), definition.methods.get("backward")
    if (
        forward is None
        or backward is None
        or not any("Function" in base for base in api_bases(at.interpreter, cls, at.state))
    ):
        return
    decorated = any(found or hidden for found, hidden in (_decorators(at, forward), _decorators(at, backward)))
    if not decorated and _listed(at, forward, LOWER_PRECISION | FLOAT32_OPS):
        words = "its backward meets other dtypes than its forward"
        yield at.finding(
            f"{definition.name} runs under autocast without custom_fwd and custom_bwd: {words}",
            at=definition.at,
            trail=[(at.event.at, "it is applied in a region here")],
        )


@check("AMP126", on=Finished)
def kernel_without_cast(at: Moment[Finished]) -> Iterator[Draft]:
    for forward, _ in _pairs(at):
        one = _decorators(at, forward)[0].get("fwd")
        if one is None or _casts_inputs(one):
            continue
        calls = [call for call in walk(forward.body) if isinstance(call, CallLeaf)]
        if any(_last(call.func) in _CASTS for call in calls):
            continue
        modules = [_imported(at, call.func) for call in calls]
        if any(_EXTENSION.search(module) and not module.startswith("torch") for module in modules):
            words = "custom_fwd without cast_inputs: the kernel gets its inputs in whatever dtype they have"
            yield at.finding(words, at=one.at)


def _listed(at: Moment[Any], function: Function, ops: frozenset[str] = LOWER_PRECISION) -> bool:
    """The body has an operation whose dtype autocast decides: one that it runs in lower precision, if not told."""
    for node in walk(function.body):
        if isinstance(node, Binary) and node.op == "MatrixMultiply":
            return True
        if isinstance(node, CallLeaf) and _last(node.func) in ops:
            module = _imported(at, node.func)
            if not module or module.startswith("torch"):
                return True
    return False


def _last(func: Term) -> str:
    return func.name if isinstance(func, Attr) else func.id if isinstance(func, Name) else ""


def _imported(at: Moment[Any], func: Term) -> str:
    """What the root of a called name was imported as; "" when it is not imported."""
    while isinstance(func, Attr):
        func = func.base
    known = mentions.names(at)
    bound = known.module.imports.get(func.id, []) if known is not None and isinstance(func, Name) else []
    return bound[0].full if bound else ""


def walk(node: object) -> Iterator[Any]:
    """A piece of trace and everything in it, nested functions included."""
    if isinstance(node, tuple):
        for part in node:
            yield from walk(part)
    elif isinstance(node, Function):
        yield from walk(node.body)
    elif is_dataclass(node) and not isinstance(node, ClassDef):
        yield node
        for each in fields(node):
            yield from walk(getattr(node, each.name))
