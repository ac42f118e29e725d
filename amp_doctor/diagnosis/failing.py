"""In what the script ended, in the reduced precision that it asks for: that is to be mended before all else."""

from __future__ import annotations

import re
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import INPUT
from amp_doctor.diagnosis.nonfinite import endless_skipping, origin
from amp_doctor.diagnosis.operators import O1_FLOAT16
from amp_doctor.diagnosis.profile import Source
from amp_doctor.diagnosis.words import count, line_words

if TYPE_CHECKING:
    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Profile

# The words of the errors that torch raises where half meets what does not take it, and of CUDA's refusal.
_REFUSALS = (
    "unsafe to autocast",
    "same dtype",
    "not implemented for 'half'",
    "expected scalar type",
    "scalar type half",
)
_RAISED = re.compile(r"the script raised (?P<error>.*) \((?P<path>[^()]+):(?P<line>\d+)\)", re.DOTALL)
_BANNED = re.compile(r"torch\.nn\.functional\.(\w+) and \S+ are unsafe to autocast")


def failing(known: Facts) -> str:
    """A clause that says in what the script ended, and where; empty when it came through, or computes in FP32 anyway.

    What a scaler skips while it looks for its scale is no end: the loss is finite again after it.
    """
    profile = known.profile
    if not (known.use.float16 or known.use.bfloat16):
        return ""
    if refusal := refused_at(profile):
        name, source = refusal
        banned = name == "binary_cross_entropy"
        why = "which CUDA's autocast refuses" if banned else "which does not take the dtypes that it is handed"
        return f"the script ended in an error of {name}{_at(source)}, {why}"
    met = profile.first_nonfinite
    if met is not None and not (profile.loss and isfinite(profile.loss[-1])):
        value, found = "NaN" if met.value == "nan" else "infinity", origin(known)
        name = found.operator.removesuffix(INPUT) if found else met.operator or ""
        line = _at(found.source if found else met.source)
        parts = [f"from {name}{line}", f"in {met.layer}"] if name else [f"in {met.layer or 'the model'}{line}"]
        where = ", ".join(part for part in parts if part != "in ")
        return f"the script ended in NaN or infinities, the first of them {value} in step {met.step}, {where}"
    if any(endless_skipping(known)):
        skipped = [event for event in profile.scaler if event.found_inf]
        blamed = Counter(event.layer for event in skipped if event.layer).most_common(1)
        cause = f" for what came from {blamed[0][0]}" if blamed else ""
        return f"the scaler skipped {len(skipped)} of {count(len(profile.scaler), 'step')}{cause}"
    return ""


def refused_at(profile: Profile) -> tuple[str, Source | None] | None:
    """The operator, and its line, whose error ended the run under autocast; None when it ended otherwise."""
    if profile.ended != "exception":
        return None
    for one in profile.operators:
        if one.trouble == "banned" and one.precision in ("", O1_FLOAT16):
            return one.operator, one.source
    for note in profile.notes:
        raised = _RAISED.match(note)
        if raised is not None and any(words in raised["error"].lower() for words in _REFUSALS):
            banned = _BANNED.search(raised["error"])
            return (banned[1] if banned else "the call"), Source(raised["path"], int(raised["line"]))
    return None


def _at(source: Source | None) -> str:
    return f" at {line_words(source)}" if source else ""
