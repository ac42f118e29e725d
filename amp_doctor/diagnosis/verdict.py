"""Did the recommendation work? Two runs of the same steps, FP32 and as recommended, -> verified, refuted, inconclusive.

Rounding moves every loss a little, and a skipped step delays all that follow by one; what counts is whether training
goes on as well as in FP32. Distances are relative to the loss of the step. Nothing is refuted by a difference that two
FP32 runs show as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.precision import HALF
from amp_doctor.diagnosis.profile import WEIGHT_GRAD
from amp_doctor.diagnosis.recommendation import Run
from amp_doctor.diagnosis.words import count, magnitude, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Profile

VERIFIED = "verified"
REFUTED = "refuted"
INCONCLUSIVE = "inconclusive"

# Steps below which nothing is verified.
FEWEST = 5
# Mean distance of the losses that rounding may cause; four times that where it goes both ways.
TOLERANCE = 0.05
SCATTER = 4 * TOLERANCE
# Attempts that a loss scale may cost: one, or this share.
SKIPPED = 0.1
# Of the gradients, what may be lost before equal losses say little, and before they say nothing.
LOST_MANY = 0.5
LOST_MOST = 0.9


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and in words the numbers that it rests on; whether it rests on nothing but higher losses."""

    verdict: str
    reason: str
    by_loss: bool = False


def run_of(settings: str, profile: Profile, full: Profile, failure: str = "") -> Run:
    """A run of a proof, from its profile and that of the FP32 run."""
    skipped = max((log.skipped for log in profile.optimizers), default=0)
    return Run(settings, profile.loss, skipped, lost(full, profile), profile.seconds, profile.steps.attempted, failure)


def lost(full: Profile, profile: Profile) -> float | None:
    """The share of the gradients of weights, non-zero in `full`, that are zero in `profile`; None without any."""
    before = {layer.name: layer.sites[WEIGHT_GRAD].histogram for layer in full.layers if WEIGHT_GRAD in layer.sites}
    after = {layer.name: layer.sites[WEIGHT_GRAD].histogram for layer in profile.layers if WEIGHT_GRAD in layer.sites}
    gone = total = 0.0
    for name, counts in before.items():
        now = after.get(name)
        if now is None or not now.elements or not counts.elements:
            continue
        # The runs may have counted different numbers of steps.
        zeros = now.zeros / now.elements * counts.elements
        total += counts.nonzero
        # Whole elements: the numbers of steps may not divide each other.
        gone += min(max(0, round(zeros - counts.zeros)), counts.nonzero)
    return gone / total if total else None


def still_half(profile: Profile) -> str:
    """What was in half all the same, in a run that was to have none of it; empty when nothing was."""
    sites = ((layer.name, layer.sites[WEIGHT_GRAD].dtype) for layer in profile.layers if WEIGHT_GRAD in layer.sites)
    met = [name for name, dtype in sites if dtype in HALF]
    if not met and not any(dtype in HALF for log in profile.optimizers for dtype in log.dtypes):
        return ""
    where = f" of {met[0]}" if met else ""
    return f"the script makes weights{where} half in a way that cannot be undone from outside"


def skips(run: Run) -> bool:
    """Whether more attempts were skipped than a loss scale may cost."""
    return run.skipped > max(1.0, SKIPPED * run.steps)


def judge(full: Run, tried: Run, again: Run | None = None, shaken: Run | None = None) -> Judgement:
    """`full` is the FP32 run, `again` a second one that shows how far two of them lie apart.

    `shaken` is a third, from weights changed in their fourth digit: it shows how far any rounding drives them apart.
    """
    if full.failure or not full.steps:
        return Judgement(INCONCLUSIVE, f"the FP32 run itself failed: {full.failure or 'it made no step'}")
    if again is not None and again.failure:
        return Judgement(INCONCLUSIVE, f"a second FP32 run failed: {again.failure}")
    if tried.failure:
        return Judgement(REFUTED, f"the script fails, which in FP32 it does not: {tried.failure}")
    if skips(full):
        told = f"{full.skipped} of {full.steps} steps were skipped for infinite gradients"
        return Judgement(INCONCLUSIVE, f"the FP32 run fails as well: {told}")
    length = min(len(full.loss), len(tried.loss))
    if not length:
        return Judgement(INCONCLUSIVE, "no loss was seen that could be compared")
    if not all(map(isfinite, full.loss[:length])):
        return Judgement(INCONCLUSIVE, "the loss is not finite in FP32 either")
    broken = sum(not isfinite(loss) for loss in tried.loss[:length])
    if broken:
        # Also where the step was skipped: no loss scale reaches the forward pass, and each such batch is lost.
        where = next(index for index, loss in enumerate(tried.loss, 1) if not isfinite(loss))
        return Judgement(
            REFUTED, f"the loss is not finite on {count(broken, 'step')}, first on step {where}; in FP32 it is"
        )
    if skips(tried):
        return Judgement(REFUTED, f"{tried.skipped} of {tried.steps} steps were skipped for infinite gradients")
    if length < FEWEST:
        return Judgement(INCONCLUSIVE, f"{count(length, 'step')} are too few: at least {FEWEST} are needed")
    return _by_loss(full, tried, again, shaken, length)


def _by_loss(full: Run, tried: Run, again: Run | None, shaken: Run | None, length: int) -> Judgement:
    far, bias = distance(full.loss[:length], tried.loss[:length], tried.skipped)
    told = (
        f"over {count(length, 'step')} the loss goes from {magnitude(full.loss[0])} to "
        f"{magnitude(full.loss[length - 1])} in FP32 and to {magnitude(tried.loss[length - 1])} as tried, "
        f"{percent(far)} apart on average, {tried.skipped} skipped"
    )
    gone = tried.lost or 0.0
    told += f", {percent(gone)} of the gradients lost" if tried.lost is not None else ""
    if gone >= LOST_MOST:
        return Judgement(REFUTED, f"most gradients arrive as zeros: {told}")
    if far <= TOLERANCE or (far <= SCATTER and abs(bias) <= TOLERANCE):
        return Judgement(VERIFIED if gone < LOST_MANY else INCONCLUSIVE, told)
    if again is not None:
        noise, _ = distance(full.loss[:length], again.loss[:length], 0)
        if 2 * noise >= far:
            apart = f"two FP32 runs lie {percent(noise)} apart themselves"
            hint = "one that resumes from files it writes does with --scratch"
            return Judgement(INCONCLUSIVE, f"the script does not repeat itself ({hint}): {apart}; {told}")
    if shaken is not None and not shaken.failure:
        moved, _ = distance(full.loss[:length], shaken.loss[:length], 0)
        if 2 * moved >= far:
            why = f"FP32 itself, from weights changed in their fourth digit, lies {percent(moved)} apart"
            return Judgement(INCONCLUSIVE, f"any rounding drives these losses apart: {why}; {told}")
    if bias < 0:
        return Judgement(INCONCLUSIVE, f"the losses differ, but are not higher than in FP32: {told}")
    return Judgement(REFUTED, told, by_loss=True)


def distance(full: Sequence[float], tried: Sequence[float], skipped: int) -> tuple[float, float]:
    """How far `tried` lies from `full`, step by step, relative to the loss; without and with its sign.

    A step may be compared with one of up to `skipped` steps before: what was skipped delays the rest. Steps without a
    finite loss are left out. Losses far below what is usual in the run count as a tenth of that, and as a thousandth of
    the first at least: near zero nothing is left of relative precision.
    """
    floor = max(0.1 * median(map(abs, full)), 1e-3 * abs(full[0]), 1e-12)
    apart = []
    for step, (one, other) in enumerate(zip(full, tried, strict=False)):
        if isfinite(one) and isfinite(other):
            near = min((full[back] - other for back in range(max(0, step - skipped), step + 1)), key=abs)
            apart.append(-near / max(abs(one), floor))
    if not apart:
        return 0.0, 0.0
    return fmean(map(abs, apart)), fmean(apart)
