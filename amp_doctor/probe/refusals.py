"""A script that ended because autocast refuses an operator -> that operator, with its line and layer."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from torch import Tensor, nn

from amp_doctor.diagnosis.profile import Operator, Source
from amp_doctor.probe.cuda_rules import BANNED, policy
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.traces import INSTALLED, family

if TYPE_CHECKING:
    from types import FrameType

    from amp_doctor.probe.names import Names


def refusal(error: BaseException, names: Names) -> Operator | None:
    """The operator whose call raised `error`, as autocast's own kernel does for those that it bans; None for others."""
    for one in family(error):
        name = _banned(one)
        if name:
            return _operator(name, list(traceback.walk_tb(one.__traceback__)), names)
    return None


def _banned(error: BaseException) -> str:
    """Autocast's kernel names the operator; what the operator itself complains of says nothing of autocast."""
    if not isinstance(error, RuntimeError) or "autocast" not in str(error):
        return ""
    names = (name.partition(".")[0] for name, rule in policy().items() if rule == BANNED)
    return next((name for name in names if name in str(error)), "")


def _operator(name: str, frames: list[tuple[FrameType, int]], names: Names) -> Operator:
    own = [(frame, line) for frame, line in frames if not frame.f_code.co_filename.startswith(INSTALLED)]
    frame, line = (own or frames)[-1]
    modules = [one for frame, _ in frames if isinstance(one := frame.f_locals.get("self"), nn.Module)]
    records = [record for module in modules if (record := names.of(module)) is not None]
    inputs = [one for frame, _ in frames[-1:] for one in frame.f_locals.values() if isinstance(one, Tensor)]
    return Operator(
        name,
        names.full(records[-1]) if records else "",
        Source(frame.f_code.co_filename, line),
        "",
        "banned",
        dtype_name(inputs[0].dtype) if inputs else "",
    )
