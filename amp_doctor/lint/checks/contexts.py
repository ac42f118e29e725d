"""AMP115 to AMP118, AMP122 and AMP123: autocast as an object, private names, the inverted flag."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.finding import Applicability, Confidence
from amp_doctor.lint import paths
from amp_doctor.lint.apis import AUTOCASTS
from amp_doctor.lint.checks import mentions
from amp_doctor.lint.checks.registry import Draft, Finished, Moment, Reference, check
from amp_doctor.lint.events import OpCall
from amp_doctor.lint.objects import Tensor
from amp_doctor.lint.trace import Attr, Branch, CallLeaf, Const, Exit, Name, Seq, Stmt, Unary

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    if not at.module.places.simple(reference.at):
        return False
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
    made = {one.at for one in at.module.references if one.how == "call" and one.name in AUTOCASTS}
    if not made:
        return
    for body in (at.module.body, *(function.body for function in at.module.functions)):
        for branch in (*paths.branches(body), *_early_returns(body)):
            flag, off, on = _arms(branch)
            context = _entered(off, made) if flag else None
            if context is not None and _entered(on, made) is None and (_statement(branch) or _nothing(on)):
                words = f"autocast is entered only when {flag} is false"
                yield at.finding(words, at=context, confidence=Confidence.MEDIUM)


def _early_returns(body: Seq) -> Iterator[Branch]:
    """`if flag: return this` and what follows it, as the two arms that they are."""
    for place, item in enumerate(body.items):
        inner = item.body.items if isinstance(item, Stmt) else (item,)
        branch = inner[-1] if inner else None
        if isinstance(branch, Branch) and not branch.other.items and _returns(branch.then):
            yield replace(branch, other=Seq(body.items[place + 1 :]))


def _returns(arm: Seq) -> bool:
    last = arm.items[-1] if arm.items else None
    return _returns(last.body) if isinstance(last, Stmt) else isinstance(last, Exit) and last.kind == "return"


def _arms(branch: Branch) -> tuple[str, Seq, Seq]:
    """The flag that is tested ("" when it is none), what runs when it is off, and what when it is on."""
    test, on, off = branch.test, branch.then, branch.other
    if isinstance(test, Unary) and test.op == "Not":
        test, on, off = test.operand, off, on
    flag = paths.written(test) if isinstance(test, Name | Attr) else ""
    return (flag if _SWITCH.match(flag.rpartition(".")[2].lower()) else ""), off, on


def _entered(arm: Seq, made: set[int]) -> int | None:
    """The autocast that an arm makes itself (to enter or to bind it), unless that one is switched by its arguments."""
    for item in arm.items:
        if isinstance(item, Stmt):
            found = _entered(item.body, made)
            if found is not None:
                return found
        elif isinstance(item, CallLeaf) and item.at in made and not _off(item):
            return item.at
    return None


def _off(call: CallLeaf) -> bool:
    """The call has `enabled=False`, or an `enabled` of its own, or a lone False."""
    return any(key == "enabled" or (key is None and isinstance(v, Const) and v.value is False) for key, v in call.args)


def _statement(branch: Branch) -> bool:
    """An `if` statement, not a conditional expression (whose arms only bind its result)."""
    return any(isinstance(item, Stmt) for item in (*branch.then.items, *branch.other.items))


def _nothing(arm: Seq) -> bool:
    """A context that does nothing."""
    calls = [item for item in arm.items if isinstance(item, CallLeaf)]
    return len(calls) == 1 and paths.written(calls[0].func).rpartition(".")[2] in _NOTHING
