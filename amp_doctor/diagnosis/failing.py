"""In what the script ended, in the reduced precision that it asks for: that is to be mended before all else."""

from __future__ import annotations

import re
from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import INPUT
from amp_doctor.diagnosis.nonfinite import endless_skipping, origin
from amp_doctor.diagnosis.operators import O1_FLOAT16, REFUSED, format_of
from amp_doctor.diagnosis.raised import out_of_order, raised
from amp_doctor.diagnosis.words import count, line_words

if TYPE_CHECKING:
    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Operator, Profile, Source

# The words of the errors that torch raises where half meets what does not take it, and of CUDA's refusal.
_REFUSALS = (
    "unsafe to autocast",
    "same dtype",
    "not implemented for 'half'",
    "expected scalar type",
    "scalar type half",
)
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
        return f"the script ended in an error of {name}{_at(source)}, {_why(name, refusing(profile))}"
    if broken := out_of_order(profile):
        return f"the script ended in an error of the GradScaler{_at(broken[1])} ({broken[0]})"
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
    if one := refusing(profile):
        return one.operator, one.source
    met = raised(profile)
    if met is not None and any(words in met[0].lower() for words in _REFUSALS):
        banned = _BANNED.search(met[0])
        return (banned[1] if banned else "the call"), met[1]
    return None


def refusing(profile: Profile) -> Operator | None:
    """The same operator, where the probe has seen which one it was."""
    if profile.ended != "exception":
        return None
    for one in profile.operators:
        own = one.precision == "" and one.trouble in REFUSED
        if own or (one.trouble == "banned" and one.precision == O1_FLOAT16):
            return one
    return None


def _why(name: str, seen: Operator | None) -> str:
    if seen is not None and seen.trouble == "unsupported":
        return f"whose constant {format_of(seen)} cannot hold"
    if name == "binary_cross_entropy":
        return "which CUDA's autocast refuses"
    return "which does not take the dtypes that it is handed"


def _at(source: Source | None) -> str:
    return f" at {line_words(source)}" if source else ""
