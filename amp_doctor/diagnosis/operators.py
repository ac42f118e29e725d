"""The operators of a replayed step: which of them stay in FP32, as found by trying, and what ails each in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import INPUT
from amp_doctor.diagnosis.words import magnitude, percent
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Operator, Outcome, Profile

# The last is what a script makes half itself, without any setting.
O1_FLOAT16, O1_BFLOAT16, O0_FLOAT16 = "O1/float16", "O1/bfloat16", "O0/float16"
REFUSED = ("banned", "unsupported", "mixed")
# The operators by which an eps is added or a value is kept above one: what underflows in them is the eps.
_ADDS_EPS = frozenset("add iadd radd clamp clamp_min clip maximum".split())
# The first whole number whose successor is none of the format.
_WHOLE = {"FP16": 2048, "BF16": 256}
_AUGMENTED = frozenset("iadd isub imul itruediv idiv ifloordiv imod ipow iand ior ixor".split())
# What the loss and the gradients of a step may be off before a precision is said to change it.
TOLERANCE = 0.1


def tried(profile: Profile) -> tuple[Operator, ...]:
    """The operators whose exemption brought the step back within the tolerance, each at its line."""
    names = set(profile.replay.keep) if profile.replay is not None else set()
    return tuple(one for one in profile.operators if one.precision == O1_FLOAT16 and _called(one) in names)


def beside(profile: Profile) -> tuple[tuple[str, str], ...]:
    """The layers and operators, each with its line, that had to be exempted with them although no harm arises there."""
    known = {_called(one) for one in profile.operators}
    names = profile.replay.keep if profile.replay is not None and tried(profile) else ()
    return tuple(
        (layer if colon else "", operator if colon else layer)
        for layer, colon, operator in (one.partition(": ") for one in names if one not in known and " at " in one)
    )


def _called(one: Operator) -> str:
    return f"{one.layer}: {one.operator}" if one.layer else one.operator


def outcome(profile: Profile, precision: str) -> Outcome | None:
    """What the replay under a precision came to; None when there was none."""
    outcomes = profile.replay.outcomes if profile.replay is not None else ()
    return next((one for one in outcomes if one.precision == precision), None)


def spoiled(profile: Profile, precision: str) -> bool:
    """Whether the replayed step came out otherwise than in FP32: its loss and, where they are known, its gradients.

    A loss near zero has no relative error worth the name, and gradients alone may want another loss scale.
    """
    seen = outcome(profile, precision)
    if seen is None:
        return False
    gradients = seen.gradient_error is None or seen.gradient_error > TOLERANCE
    return seen.loss_error > TOLERANCE and gradients


def too_coarse(profile: Profile) -> bool:
    """Whether BF16, which has three bits fewer than FP16, changes the step; without a replay FP16 tells of it."""
    if outcome(profile, O1_BFLOAT16) is not None:
        return spoiled(profile, O1_BFLOAT16)
    return any(one.trouble == "precision" for one in tried(profile))


def adds_eps(one: Operator) -> bool:
    """Whether what underflows in it is a constant that guards against zero."""
    return one.trouble == "underflow" and one.phase == "forward" and one.operator.strip("_") in _ADDS_EPS


def format_of(one: Operator) -> str:
    """The format that it goes wrong in."""
    return "BF16" if "bfloat16" in (one.precision.rpartition("/")[2], one.dtype) else "FP16"


def beyond(one: Operator) -> str:
    """The constant that it cannot hold in half, in words; empty where it fails of something else."""
    if one.trouble != "unsupported":
        return ""
    if one.amax >= FP16.overflow_threshold:
        return magnitude(one.amax)
    # Of what the script itself has died of only errors about constants are kept.
    return "" if one.precision else "its constant"


def writes_in_place(name: str) -> bool:
    """Whether an operator writes into a tensor that it reads: `index_add_`, `+=`, `x[i] = ...`."""
    bare = name.removesuffix(INPUT).strip("_")
    return (name.endswith("_") and not name.startswith("_")) or bare == "setitem" or bare in _AUGMENTED


def ails(one: Operator) -> str:
    """What is wrong with it in half, as a clause about `it`."""
    short = format_of(one)
    if one.trouble == "banned":
        return "CUDA's autocast refuses it"
    if constant := beyond(one):
        return f"{short} cannot hold {constant}, and it raises an error"
    if one.trouble in REFUSED:
        return f"it fails on what autocast hands it in {short}"
    whose = "the gradients that its backward computes" if one.phase == "backward" else "its results"
    if one.trouble == "overflow" or (one.trouble == "accumulation" and one.amax >= FP16.overflow_threshold):
        what = "its inputs" if one.operator.endswith(INPUT) else whose
        if one.amax < FP16.overflow_threshold:
            # Inside it, or for a divisor that is zero: FP32's own result is no number to name.
            return f"{what} become infinite in {short}, though they are not large in FP32"
        return f"{what} reach {magnitude(one.amax)}; FP16 ends at 65504"
    if adds_eps(one):
        return f"the eps that it adds is zero in {short}"
    if one.trouble == "underflow":
        return f"{percent(one.lost)} of {whose} vanish in {short}"
    if one.trouble == "collapse":
        same = f"{percent(one.lost)} of its whole numbers are the same as the next"
        return f"{same} in {short}, which lacks some beyond {_WHOLE[short]}"
    if one.trouble == "accumulation":
        end = "" if short == "BF16" else " and ends at 65504"
        return f"it adds up in {short}, which no longer notices ones beyond {_WHOLE[short]}{end}"
    return (
        f"{whose} are {percent(min(one.error, 1.0))} off in {short}" if one.error else f"{short} is too coarse for it"
    )
