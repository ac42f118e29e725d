"""AMP115 to AMP118, AMP122 and AMP123: autocast as an object, private names, the inverted flag."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from amp_doctor.finding import Applicability, Confidence
from amp_doctor.lint.apis import AUTOCASTS
from amp_doctor.lint.checks import mentions
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, Reference, check
from amp_doctor.lint.events import OpCall
from amp_doctor.lint.objects import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amp_doctor.lint.checks.scopes import Names

# --- autocast as an object -----------------------------------------------------------------------


@check("AMP115", on=(OpCall, Reference))
def not_called(at: Moment[OpCall | Reference]) -> Iterator[Draft]:
    event = at.event
    if isinstance(event, Reference):
        if event.how != "decorator" or event.name not in AUTOCASTS:
            return
        name = event.name
    elif event.name == "autocast.__enter__" and event.receiver is not None and hasattr(event.receiver, "name"):
        name = event.receiver.name
    else:
        return
    arguments = "" if AUTOCASTS[name][0] else '"cuda"'
    fix = None
    if at.home(event.at) is at.module and re.fullmatch(r"[\w.]+", at.text(event.at)):
        edit = at.replace(event.at, f"{at.text(event.at)}({arguments})")
        fix = at.fix("call it", Applicability.UNSAFE, edit)
    yield at.finding(f"the class is not called: {name.rpartition('.')[2]} stands where an instance is needed", fix=fix)


@check("AMP116", on=Reference)
def not_entered(at: Moment[Reference]) -> Iterator[Draft]:
    reference = at.event
    if reference.how != "call" or reference.name not in AUTOCASTS:
        return
    if (not reference.used or _never_read(at, reference)) and mentions.mention(at, reference) is not None:
        yield at.finding("autocast is made but never entered: everything runs as if it were not there")


def _never_read(at: Moment[Reference], reference: Reference) -> bool:
    """The call is bound to a local variable that nothing reads."""
    statement = at.text(at.module.places.statement(reference.at))
    target = re.match(r"(\w+)\s*=\s*", statement)
    if target is None or statement[target.end() :].strip() != at.text(reference.at):
        return False
    known = mentions.names(at)
    start, _ = at.module.places.bytes_of(reference.at)
    load = known.loads.get(start) if known is not None else None
    if known is None or load is None or load.inside.kind != "function":
        return False
    name = target[1]
    local = name in load.inside.others and name not in load.inside.outer
    return local and not any(one.name in (name, "locals") for one in known.loads.values())


@check("AMP117", on=OpCall)
def called_on_tensor(at: Moment[OpCall]) -> Iterator[Draft]:
    if at.event.name != "autocast.__call__":
        return
    first = at.event.arg(0, "func")
    if isinstance(first, Tensor) and (first.sources or first.dtype) and not _factory(at, first.at):
        yield at.finding("autocast is called with a tensor: it wraps functions, and the model has already run")


def _factory(at: Moment[OpCall], call: int) -> bool:
    """A call whose name says that it makes a function rather than a tensor."""
    words = r"(\w+\.)*_*(make|build|create|get|wrap|load|partial|compile|script|decorat|bind)"
    return call != 0 and at.home(call) is at.module and re.match(words, at.text(call)) is not None


@check("AMP118", on=Finished)
def on_generator(at: Moment[Finished]) -> Iterator[Draft]:
    calls = {one.at: one for one in at.module.references if one.how == "call" and one.name in AUTOCASTS}
    for function in at.module.functions if calls else ():
        kind = "coroutine" if function.is_async else "generator" if function.is_generator else ""
        for decorator in function.decorators:
            if kind and decorator.at in calls:
                when = "the region is closed before the body runs"
                yield at.finding(f"autocast decorates a {kind}: {when}", at=decorator.at)


# --- private names, inverted flags ---------------------------------------------------------------

_PRIVATE = re.compile(
    r"torch\.(?:cuda|cpu)\.amp\.(common)\b|torch\.(?:(?:cuda|cpu)\.)?amp\.autocast_mode\.(_cast)$|torch\._C\.(_jit_set_autocast_mode)$"
)


@check("AMP122", on=Reference)
def private_internals(at: Moment[Reference]) -> Iterator[Draft]:
    reference = at.event
    found = _PRIVATE.match(reference.name)
    if found is None or reference.guarded:
        return
    part = next(filter(None, found.groups()))
    imported = reference.how in mentions.IMPORTS
    if not imported and not re.search(rf"\.{part}\b", at.text(reference.func_at)):
        return  # its import is reported
    if imported or mentions.mention(at, reference) is not None:
        name = found[0] if part == "common" else part
        place = reference.func_at if imported else reference.at
        yield at.finding(f"{name} is internal to PyTorch and may go without notice", at=place)


_SWITCH = re.compile(
    r"((use|with|enable|do|is|run)_)?(native_|torch_|cuda_)?(amp|autocast|mixed_precision)(_enabled|_on)?$"
)
_NOTHING = ("nullcontext", "suppress", "dummy_context", "null_context")


@check("AMP123", on=Finished)
def inverted_flag(at: Moment[Finished]) -> Iterator[Draft]:
    """The flag for mixed precision chooses autocast when it is off."""
    made = [one.at for one in at.module.references if one.how == "call" and one.name in AUTOCASTS]
    known = mentions.names(at) if made else None
    if known is None:
        return
    calls = {at.module.places.bytes_of(call)[0]: call for call in made}
    for node in ast.walk(known.tree):
        if isinstance(node, ast.If | ast.IfExp):
            flag, off, on = _arms(node)
            context = _autocast(known, off, calls) if flag else None
            if context and not _autocast(known, on, calls) and (isinstance(node, ast.If) or _nothing(on)):
                words = f"autocast is entered only when {flag} is false"
                yield at.finding(words, at=context, confidence=Confidence.MEDIUM)


def _arms(node: ast.If | ast.IfExp) -> tuple[str, Sequence[ast.AST], Sequence[ast.AST]]:
    """The flag that is tested ("" when it is none), what runs when it is off, and what when it is on."""
    body = node.body if isinstance(node.body, list) else [node.body]
    orelse = node.orelse if isinstance(node.orelse, list) else [node.orelse]
    test = node.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, body, orelse = test.operand, orelse, body
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    flag = ast.unparse(test) if _SWITCH.match(name.lower()) else ""
    return flag, orelse, body


def _autocast(known: Names, arm: Sequence[ast.AST], calls: dict[int, int]) -> int | None:
    """The autocast that an arm enters or binds at once."""
    for part in arm:
        contexts: list[ast.AST] = [part]
        if isinstance(part, ast.With):
            contexts = [item.context_expr for item in part.items]
        elif isinstance(part, ast.Assign | ast.Return) and part.value is not None:
            contexts = [part.value]
        for call in contexts:
            if isinstance(call, ast.Call) and known.offset(call) in calls and not _off(call):
                return calls[known.offset(call)]
    return None


def _off(call: ast.Call) -> bool:
    """The call has `enabled=False`, or an `enabled` of its own, or a lone False."""
    plain = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    return False in plain or any(keyword.arg == "enabled" for keyword in call.keywords)


def _nothing(arm: Sequence[ast.AST]) -> bool:
    """A context that does nothing."""
    (part,) = arm
    name = ast.unparse(part.func) if isinstance(part, ast.Call) else ""
    return name.rpartition(".")[2] in _NOTHING
