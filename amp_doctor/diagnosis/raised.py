"""The error that ended a run, as its last words tell it, and what a GradScaler raises when it is used out of order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import RAISED, Source

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile

_RAISED = re.compile(r"the script raised (?P<error>.*) \((?P<path>[^()]+):(?P<line>\d+)\)", re.DOTALL)
# Words of the errors in torch/amp/grad_scaler.py -> the findings of the linter that foretell them.
_PROTOCOL = {
    "step() has already been called since the last update()": ("AMP206", "AMP234"),
    "unscale_() has already been called on this optimizer": ("AMP206", "AMP217"),
    "unscale_() is being called after step()": ("AMP206", "AMP218"),
    "No inf checks were recorded": ("AMP208", "AMP212", "AMP241"),
    "but _scale is None": ("AMP202", "AMP211", "AMP212"),
    "Attempting to unscale FP16 gradients": ("AMP402",),
    "Closure use is not currently supported if GradScaler is enabled": ("AMP222",),
}


def raised(profile: Profile) -> tuple[str, Source] | None:
    """The error, with its type, and the line of the user's code that it came from; None when the run ended otherwise.

    The line is told as all others of the profile are, where it is known; else with the path that the note has.
    """
    if profile.ended != "exception":
        return None
    for note in profile.notes:
        if met := _RAISED.match(note):
            return met["error"], profile.places.get(RAISED) or Source(met["path"], int(met["line"]))
    return None


def foretelling(error: str) -> tuple[str, ...]:
    """The codes of the linter that are about an error of the scaler's protocol; empty for other errors."""
    return next((codes for words, codes in _PROTOCOL.items() if words in error), ())


def out_of_order(profile: Profile) -> tuple[str, Source] | None:
    """What the scaler complained of, without its type and in one clause, and the line, where that ended the run."""
    met = raised(profile)
    if met is None or not foretelling(met[0]):
        return None
    return met[0].partition(": ")[2].rstrip("."), met[1]
