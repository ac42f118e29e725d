"""How a script ended -> what the profile and the exit status say about it."""

from __future__ import annotations

from dataclasses import dataclass

from amp_doctor.probe.settings import Stop
from amp_doctor.probe.traces import family, status_of, summary


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
    return Outcome("exception", 1, f"the script raised {summary(error)}", shown=True)
