"""How a script ended -> what the profile and the exit status say about it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from amp_doctor.probe.settings import Stop
from amp_doctor.probe.traces import family, status_of, summary

_MISSED = re.compile(r"\b(CUDA|NVIDIA|GPU)\b")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`how` is one of `diagnosis.profile.ENDS`; `status` is None when all went well or the script was stopped by us.

    `shown` says that the exception is to be printed as Python would; `note` goes into the profile.
    """

    how: str
    status: int | None = None
    note: str | None = None
    shown: bool = False


def outcome_of(error: BaseException | None, stopped: bool) -> Outcome:
    """Judge what the script raised; `stopped` tells that Stop was on its way before."""
    if error is None:
        return Outcome("steps" if stopped else "finished")
    if isinstance(error, Stop):
        return Outcome("steps")
    if stopped:
        return Outcome("steps", None, f"after the stop the script raised {summary(error)}")
    if isinstance(error, SystemExit):
        status = status_of(error)
        interrupted = any(isinstance(one, KeyboardInterrupt) for one in family(error))
        if status == 0:
            return Outcome("finished")
        return Outcome("interrupted" if interrupted else "exception", status, f"the script exited with status {status}")
    if isinstance(error, KeyboardInterrupt):
        return Outcome("interrupted", 130)
    return Outcome("exception", 1, f"the script raised {summary(error)}{_advice(error)}", shown=True)


def _advice(error: BaseException) -> str:
    """For a script that asks for what this machine lacks; under a dry run it is there."""
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available() or not _MISSED.search(str(error)):
        return ""
    return "; there is no GPU here: --dry-run cuda runs it on the CPU, under the rules of CUDA's autocast"
