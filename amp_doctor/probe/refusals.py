"""A script that ended because half refuses an operator, or autocast does -> that operator, with its line and layer."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from torch import Tensor, nn

from amp_doctor.diagnosis.profile import Operator, Source
from amp_doctor.probe.cuda_rules import BANNED, policy
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.expressions import parsed, place_of
from amp_doctor.probe.half_calls import WRITE, beyond
from amp_doctor.probe.traces import INSTALLED, family
from amp_doctor.probe.troubles import UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from amp_doctor.probe.names import Names

_CONSTANT = re.compile(r"value cannot be converted to type \S*?(Half|BFloat16) without overflow")
_DTYPES = {"Half": "float16", "BFloat16": "bfloat16"}


def refusal(error: BaseException, names: Names) -> Operator | None:
    """The operator whose call raised `error`, as a GPU would too; None for others.

    Either autocast's own kernel refuses it, or it writes a constant into half memory that half cannot hold. The frames
    of this package are taken to be out of the traceback.
    """
    for one in family(error):
        calls = list(_calls(one.__traceback__))
        if not calls or not isinstance(one, RuntimeError):
            continue
        if name := _banned(one):
            return _operator(name, BANNED, calls, names)
        if (met := _CONSTANT.search(str(one))) and (written := _written(calls[-1])):
            name, amax = written
            return _operator(name, UNSUPPORTED, calls, names, _DTYPES[met[1]], amax)
    return None


def _calls(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _banned(error: BaseException) -> str:
    """Autocast's kernel names the operator; what the operator itself complains of says nothing of autocast."""
    if "autocast" not in str(error):
        return ""
    names = (name.partition(".")[0] for name, rule in policy().items() if rule == BANNED)
    return next((name for name in names if name in str(error)), "")


def _written(trace: TracebackType) -> tuple[str, float] | None:
    """The operator that is called there, where a GPU writes its constants as they are; and the largest of them."""
    frame = trace.tb_frame
    place = place_of(frame.f_code, trace.tb_lasti)
    call = parsed(frame.f_code, place) if place is not None else None
    if not isinstance(call, ast.Call):
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in WRITE:
        return None
    known = {**frame.f_globals, **frame.f_locals}
    return name, beyond(_values([*call.args, *(one.value for one in call.keywords)], known))


def _values(arguments: list[ast.expr], known: dict[str, object]) -> Iterator[object]:
    """The arguments that are literals or names; others are not computed again."""
    for one in arguments:
        if isinstance(one, ast.Name):
            yield known.get(one.id)
            continue
        with suppress(ValueError, TypeError, SyntaxError):
            yield ast.literal_eval(one)


def _operator(
    name: str, trouble: str, calls: list[TracebackType], names: Names, dtype: str = "", amax: float = 0.0
) -> Operator:
    own = [one for one in calls if not one.tb_frame.f_code.co_filename.startswith(INSTALLED)]
    line = (own or calls)[-1]
    modules = [one for call in calls if isinstance(one := call.tb_frame.f_locals.get("self"), nn.Module)]
    records = [record for module in modules if (record := names.of(module)) is not None]
    inputs = [one for one in calls[-1].tb_frame.f_locals.values() if isinstance(one, Tensor)]
    return Operator(
        name,
        names.full(records[-1]) if records else "",
        Source(line.tb_frame.f_code.co_filename, line.tb_lineno),
        "",
        trouble,
        dtype or (dtype_name(inputs[0].dtype) if inputs else ""),
        amax,
    )
