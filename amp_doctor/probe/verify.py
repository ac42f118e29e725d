"""Proof of a recommendation: the script again in fresh processes, in FP32, as written and as recommended.

All runs have the same seeds, set before the script, which may set its own. Only losses, steps and, on a few steps, the
gradients of weights are looked at, so that a run costs little more than a plain one. Without a GPU reduced precision is
emulated under CUDA's rules: real half kernels of a CPU round elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import Profile
from amp_doctor.diagnosis.recommendation import Run, Verified
from amp_doctor.diagnosis.revise import next_best
from amp_doctor.diagnosis.verdict import (
    INCONCLUSIVE,
    REFUTED,
    VERIFIED,
    Judgement,
    judge,
    lost,
    run_of,
    skips,
    still_half,
)
from amp_doctor.diagnosis.words import listed
from amp_doctor.diagnosis.written import in_float32_already, own_casts
from amp_doctor.probe.fresh import Fresh, loaded
from amp_doctor.probe.rerun import CUT, Command, environment_of, rerun
from amp_doctor.probe.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.recommendation import Recommendation

__all__ = ["Command", "verify"]

HALF = {"float16", "bfloat16"}


class _Cut(Exception):
    """Somebody does not want to wait for more."""


def verify(
    profile: Profile,
    recommendation: Recommendation,
    command: Command,
    steps: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Recommendation:
    """The recommendation with `verified` filled in; when it is refuted, the next best with the proof of both.

    `steps` are those to run, as many as were probed when it is None. `say` is told of each run before it starts. After
    a KeyboardInterrupt it is inconclusive, with the runs so far and the reason `CUT`.
    """
    steps = steps or profile.steps.attempted
    reason = command.unrepeatable or ("" if steps else "no optimizer step was seen, so there is nothing to repeat")
    reason = reason or ("" if recommendation.dtype in HALF else in_float32_already(profile))
    if reason:
        return replace(recommendation, verified=Verified(INCONCLUSIVE, 0, (), reason))
    with Fresh(environment_of(command.environment), command.directory, loaded()) as fresh:
        return _Proof(profile, command, steps, say, fresh).of(recommendation)


class _Proof:
    def __init__(
        self, profile: Profile, command: Command, steps: int, say: Callable[[str], None], fresh: Fresh
    ) -> None:
        self._profile, self._command, self._steps, self._say, self._fresh = profile, command, steps, say, fresh
        self._dry_run = command.dry_run or profile.device.emulated
        self._emulated = self._dry_run or profile.device.kind == "cpu"
        # What the script casts to half is to stay in float32, except as it is written.
        self._widen = bool(HALF & set(profile.precision.weights))
        self._runs: list[Run] = []
        # The profiles of the FP32 run, of the one as written, and of the latest.
        self._full = self._written = self._last = Profile()
        self._again: Run | None = None
        self._moved: Run | None = None

    def of(self, recommendation: Recommendation) -> Recommendation:
        """All runs that are needed, and what they show."""
        try:
            return self._of(recommendation)
        except _Cut:
            return self._marked(recommendation, Judgement(INCONCLUSIVE, CUT))

    def _of(self, recommendation: Recommendation) -> Recommendation:
        full = self._in_float32()
        self._as_written(full)
        if full.failure or not full.steps:
            return self._marked(recommendation, self._without_full(full))
        if left := still_half(self._full):
            return self._marked(recommendation, Judgement(INCONCLUSIVE, left))
        if skips(full):
            # What is infinite without autocast comes from the script's own casts, or from its numbers.
            reason = judge(full, full).reason + own_casts(self._profile)
            return self._marked(recommendation, Judgement(INCONCLUSIVE, reason))
        judgement = self._tried(recommendation, full)
        told, advice = judgement.reason, recommendation
        refuted: list[str] = []
        # After BF16 FP16 with some of it in FP32 is an attempt: where that shows nothing, FP32 is what is certain.
        while judgement.verdict == REFUTED or (refuted and advice.dtype == "float16" and judgement.verdict != VERIFIED):
            refuted.append(advice.dtype)
            revised = next_best(advice, self._profile, refuted)
            if revised is None:
                break
            advice = revised
            judgement = self._tried(advice, full)
            told = told.rstrip(".") + f". {advice.dtype}, tried instead, is {judgement.verdict}: {judgement.reason}"
        if advice is recommendation:
            return self._marked(recommendation, judgement)
        first = f"{recommendation.dtype} was refuted by a run of {self._steps} steps"
        advice = replace(advice, reasons=(first, *recommendation.reasons))
        return self._marked(advice, Judgement(REFUTED, f"{recommendation.dtype}: {told}"), instead=advice.dtype)

    def _marked(self, recommendation: Recommendation, told: Judgement, instead: str = "") -> Recommendation:
        proof = Verified(told.verdict, self._steps, tuple(self._runs), told.reason, instead)
        return replace(recommendation, verified=proof)

    def _without_full(self, full: Run) -> Judgement:
        judgement = judge(full, full)
        if not self._widen:
            return judgement
        why = "the script casts to half, and breaks when that is undone from outside: there is no FP32 to compare with"
        return Judgement(INCONCLUSIVE, f"{why}: {full.failure or 'it made no step'}")

    @property
    def _casts(self) -> str:
        return ", casts to half undone" if self._widen else ""

    def _in_float32(self) -> Run:
        """The run to compare with; once more without the script's casts to half where those may be what breaks it."""
        full = self._run("float32" + self._casts, Trial("float32", widen=self._widen), self._dry_run)
        if self._widen or not _breaks(full):
            return full
        kept, self._widen = self._full, True
        wide = self._run("float32" + self._casts, Trial("float32", widen=True), self._dry_run)
        if wide.loss and not _breaks(wide):
            self._full = self._last
            self._runs = [replace(wide, lost=lost(self._full, self._full)), replace(full, lost=lost(self._full, kept))]
            return self._runs[0]
        self._runs.pop()
        self._widen, self._full = False, kept
        return full

    def _as_written(self, full: Run) -> None:
        use = self._profile.precision
        reduced = sorted(HALF & set(use.autocast))
        weights = [f"weights in {one}" for one in sorted(HALF & set(use.weights))]
        words = ", ".join([*weights, *reduced, *(["a GradScaler"] if use.scaler else [])])
        if words:
            del self._runs[1:]
            self._run(f"as written ({words})", Trial(), self._emulated)
            self._written = self._last
        elif len(self._runs) > 1:
            # It is the first of two: only its own casts make it another one than FP32.
            self._runs[1] = replace(self._runs[1], settings="as written (float32, and casts to half)")
        else:
            # Nothing would differ: that would be the same run twice.
            self._runs.append(replace(full, settings="as written (float32 too, the same run)"))

    def _tried(self, advice: Recommendation, full: Run) -> Judgement:
        """Run what is advised; before it is called refuted, FP32 once more, in the same way."""
        if advice.dtype not in HALF:
            return self._float32(full)
        kept, left = self._kept(advice)
        trial = Trial(
            advice.dtype,
            not HALF & set(self._profile.precision.autocast),
            advice.loss_scale.init_scale if advice.dtype == "float16" else None,
            kept,
            self._widen,
        )
        words = f"as recommended ({_words(advice)}{self._casts}"
        if self._is_written(trial):
            written = self._runs[1]
            self._runs.append(replace(written, settings=f"{words}, as it is written: the same run)"))
            self._last = self._written
        else:
            self._run(f"{words})", trial, self._emulated)
        tried = self._runs[-1]
        if not tried.failure and (reason := self._not_patched(trial)):
            return Judgement(INCONCLUSIVE, reason)
        judgement = judge(full, tried)
        if judgement.verdict == VERIFIED:
            return judgement
        judgement = judge(full, tried, self._second())
        if judgement.by_loss:
            judgement = judge(full, tried, self._second(), self._shaken())
        if judgement.verdict == REFUTED and left:
            lines = f"to be changed first, which cannot be done from outside: {listed(list(left))}"
            return Judgement(INCONCLUSIVE, f"{lines}; as it is {judgement.reason}")
        return judgement

    def _kept(self, advice: Recommendation) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The layers to run in FP32, and the operators that no layer stands for: of a root that would be everything."""
        roots = {"", *(layer.name for layer in self._profile.layers if layer.name == layer.type)}
        needed = [one for one in advice.keep_fp32 if advice.dtype == "float16" or one.refused]
        outside = [one for one in needed if not one.whole and one.layer in roots]
        layers = dict.fromkeys(one.layer for one in needed if one not in outside)
        return tuple(layers), tuple(one.name for one in outside)

    def _is_written(self, trial: Trial) -> bool:
        """Whether a run of the trial would be the run as written over again."""
        written = self._written
        if trial.regions or trial.keep_fp32 or trial.widen or written.precision.autocast != (trial.dtype,):
            return False
        if self._runs[1].failure or not written.steps.attempted:
            return False
        scales = [event.scale for event in written.scaler[:1]]
        if trial.dtype == "bfloat16":
            return not written.precision.scaler
        return scales == [trial.init_scale]

    def _not_patched(self, trial: Trial) -> str:
        """Why the latest run was not what it was to be; empty when it was."""
        if self._last.steps.attempted and trial.dtype not in self._last.precision.autocast:
            return f"autocast of {trial.dtype} could not be patched in: the script calls no module of torch.nn"
        return still_half(self._last) if trial.widen else ""

    def _float32(self, full: Run) -> Judgement:
        """FP32 is what the others are compared with: what is left to see is that it repeats itself."""
        again = self._second()
        judgement = judge(full, again)
        if judgement.verdict != REFUTED:
            return judgement
        return Judgement(INCONCLUSIVE, f"the script does not repeat itself: {judgement.reason}")

    def _second(self) -> Run:
        if self._again is None:
            trial = Trial("float32", widen=self._widen)
            self._again = self._run(f"float32{self._casts}, once more", trial, self._emulated)
        return self._again

    def _shaken(self) -> Run:
        if self._moved is None:
            trial = Trial("float32", widen=self._widen, shaken=True)
            words = f"float32{self._casts}, from weights changed in their fourth digit"
            self._moved = self._run(words, trial, self._emulated)
        return self._moved

    def _run(self, settings: str, trial: Trial, dry_run: bool) -> Run:
        self._say(f"{settings}, {self._steps} steps")
        done = rerun(self._fresh, self._command, trial, self._steps, dry_run=dry_run, seconds=self._seconds())
        if not self._runs:
            self._full = done.profile
        self._last = done.profile
        emulated = ", emulated" if dry_run and trial.dtype != "float32" else ""
        made = run_of(settings + emulated, done.profile, self._full, done.failure)
        self._runs.append(made)
        if done.cut:
            self._runs[-1] = replace(made, settings=f"{made.settings}, interrupted")
            raise _Cut
        return made

    def _seconds(self) -> float:
        """What the steps would take at the speed of the probed run."""
        return self._profile.seconds * max(1.0, self._steps / max(1, self._profile.steps.attempted))


def _breaks(run: Run) -> bool:
    """Whether there is nothing to compare with: it failed, its loss is not finite, or no step gets through."""
    return bool(run.failure) or not all(map(isfinite, run.loss)) or skips(run)


def _words(advice: Recommendation) -> str:
    if advice.dtype != "float16":
        return advice.dtype
    start = advice.loss_scale.init_scale
    kept = len(advice.keep_fp32)
    scale = f", init_scale {start:g}" if start is not None else ""
    return f"float16{scale}{f', {kept} in float32' if kept else ''}"
