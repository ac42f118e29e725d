"""Operators that a replayed step shows to go wrong in half, without an overflow: AMP617, AMP618, AMP619."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import INPUT
from amp_doctor.diagnosis.nonfinite import origin
from amp_doctor.diagnosis.operators import (
    O0_FLOAT16,
    O1_BFLOAT16,
    O1_FLOAT16,
    REFUSED,
    adds_eps,
    ails,
    beyond,
    format_of,
    outcome,
    spoiled,
    tried,
    writes_in_place,
)
from amp_doctor.diagnosis.outcomes import coarser
from amp_doctor.diagnosis.precision import any_half
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.underflow import vanishing
from amp_doctor.diagnosis.words import count
from amp_doctor.finding import Confidence, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Operator

_FILLS = frozenset(("masked_fill", "masked_fill_", "fill_", "full_like", "new_full", "where", "pad"))
_CURE = "compute it in FP32, from .float() of what it reads"
_IN_PLACE = "compute it in FP32 into a new tensor, as a .float() copy of what it writes into would be lost"
_CURES = {"accumulation": "keep the sum in FP32", "collapse": "keep them as integers, or in FP32"}
_LOSSES = ("underflow", "precision", "overflow")


@symptom("AMP617")
def refused(facts: Facts) -> Iterable[Draft]:
    """What the script died of, and what it will die of under its own autocast or under the one that is advised.

    What autocast bans, and mixtures of dtypes that it brings about, say nothing against a script in FP32, and the
    verdict names them as lines to change; a constant beyond the range and an operator without half would be as wrong in
    a model cast to half.
    """
    yield from _drafts(
        facts,
        lambda one: one.trouble in REFUSED,
        lambda one: f"{_refusal(one)}: the run ended here",
        ("",),
        severity=Severity.ERROR,
    )
    if not any_half(facts.profile.precision.autocast):
        if not facts.use.float16 and recommend(facts.profile).dtype == "float16":
            told = "once autocast is on, as advised, {}"
            yield from _drafts(
                facts, lambda one: one.trouble == "unsupported", lambda one: told.format(_refusal(one)), (O1_FLOAT16,)
            )
    elif facts.use.only_bfloat16:
        # FP16 has been tried, too, but only what is banned is so in both.
        yield from _drafts(facts, lambda one: one.trouble == "banned", _refusal, (O1_FLOAT16,))
    else:
        yield from _drafts(facts, lambda one: one.trouble in REFUSED and one.precision != "", _refusal)


@symptom("AMP618")
def loses(facts: Facts) -> Iterable[Draft]:
    """Only what changes the step: an operator without which it would be as in FP32; sums and counts that stick."""
    chosen = tried(facts.profile)
    vanish = {one.layer.name for one, _ in vanishing(facts)}

    def matters(one: Operator) -> bool:
        if one.trouble in ("accumulation", "collapse"):
            return True
        if one.trouble not in _LOSSES or adds_eps(one) or (one.trouble == "overflow" and one.phase == "forward"):
            return False
        if one.phase == "backward" and (one.layer in vanish or (one.trouble == "overflow" and facts.largest_scale < 1)):
            return False  # AMP602 and AMP604 tell of it
        if chosen and one.precision == O1_FLOAT16:
            return one in chosen  # the rest comes from these
        came = outcome(facts.profile, one.precision)
        if came is not None and not isfinite(came.loss_error):
            return False  # the infinity is told of
        changed = spoiled(facts.profile, one.precision) or (one.precision == O1_BFLOAT16 and coarser(facts.profile))
        return one.phase == "forward" and changed

    yield from _drafts(facts, matters, lambda one: f"{ails(one)}: {_cure(one)}")


@symptom("AMP619")
def guard_is_zero(facts: Facts) -> Iterable[Draft]:
    """What was added to keep away from zero is zero itself: it tells why another finding stands on the same line."""

    def words(one: Operator) -> str:
        short, end = ("BF16", "9e-41") if one.precision == O1_BFLOAT16 else ("FP16", "6e-8")
        return f"the eps that guards against zero is itself zero in {short}, whose smallest number is {end}"

    yield from _drafts(facts, adds_eps, words, alone=False)


def _drafts(
    facts: Facts,
    wanted: Callable[[Operator], bool],
    words: Callable[[Operator], str],
    precisions: tuple[str, ...] | None = None,
    *,
    alone: bool = True,
    severity: Severity | None = None,
) -> Iterator[Draft]:
    """One for each line: the same call in several layers, or in both passes, is one mistake.

    With `alone` lines that an overflow or a NaN tells of are left out.
    """
    if facts.broken:
        return
    first, asked = origin(facts) or facts.profile.first_nonfinite, precisions or _asked(facts)
    told = {peak.source for peak in facts.peaks if peak.overflows} if alone else set()
    told |= {first.source} if alone and first is not None else set()
    lines: dict[tuple[object, ...], list[Operator]] = {}
    for one in facts.profile.operators:
        if one.precision in asked and wanted(one) and (one.source is None or one.source not in told):
            lines.setdefault((one.operator, one.source) if one.source else (one,), []).append(one)
    for same in lines.values():
        worst = max(same, key=lambda one: (one.phase == "forward", one.lost, one.error, one.amax))
        layers = len({one.layer for one in same}) - 1
        more = f" (and in {count(layers, 'more layer')})" if layers else ""
        yield Draft(
            worst.layer or None,
            f"{worst.operator.removesuffix(INPUT)} at this line: {words(worst)}{more}",
            max(worst.lost, worst.error),
            Confidence.HIGH if facts.use.float16 or facts.use.bfloat16 else Confidence.MEDIUM,
            worst.source,
            severity,
        )


def _asked(facts: Facts) -> tuple[str, ...]:
    """The precisions whose troubles are news: what the script does itself, and O1 in the dtype that it may use."""
    if facts.use.only_bfloat16:
        return "", O0_FLOAT16, O1_BFLOAT16
    return ("", O0_FLOAT16, O1_FLOAT16, *((O1_BFLOAT16,) if facts.use.bfloat16 else ()))


def _cure(one: Operator) -> str:
    return _CURES.get(one.trouble, _IN_PLACE if writes_in_place(one.operator) else _CURE)


def _refusal(one: Operator) -> str:
    if one.trouble == "banned":
        better = " (use binary_cross_entropy_with_logits, without the sigmoid)"
        return f"CUDA's autocast refuses it in half{better if one.operator == 'binary_cross_entropy' else ''}"
    if constant := beyond(one):
        cure = "fill with -inf or torch.finfo(x.dtype).min" if one.operator in _FILLS else "cast with .float() before"
        return f"it raises an error in {format_of(one)}, which cannot hold {constant}: {cure}"
    if one.operator.startswith("fft_") and not one.dtype.endswith("bfloat16"):
        return "it raises an error in FP16, where cuFFT takes powers of two only as lengths: cast with .float() before"
    if writes_in_place(one.operator):
        return f"{ails(one)}, and raises an error: cast what it reads with .to() to the dtype of what it writes into"
    return f"{ails(one)}, and raises an error: cast with .float() or .to() what it reads"
