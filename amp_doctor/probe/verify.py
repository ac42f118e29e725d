"""Proof of a recommendation: the script again in fresh processes, in FP32, as written and as recommended.

All runs have the same seeds, set before the script, which may set its own. Only losses, steps and, on a few steps, the
gradients of weights are looked at, so that a run costs little more than a plain one. Without a GPU reduced precision is
emulated under CUDA's rules: real half kernels of a CPU round elsewhere.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import amp_doctor
from amp_doctor.diagnosis.profile import Profile
from amp_doctor.diagnosis.recommendation import Run, Verified
from amp_doctor.diagnosis.revise import next_best
from amp_doctor.diagnosis.serial import from_values
from amp_doctor.diagnosis.verdict import INCONCLUSIVE, REFUTED, VERIFIED, Judgement, judge, run_of
from amp_doctor.errors import ProfileError
from amp_doctor.probe.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amp_doctor.diagnosis.recommendation import Recommendation

FLOAT32 = Trial("float32")
WRITTEN = Trial()
# Steps on which gradients are counted: the first, and so many more.
LOOKS = 4
# As a traceback ends.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)(: |$)")
_LONGEST = 300
HALF = {"float16", "bfloat16"}


@dataclass(frozen=True, slots=True)
class Command:
    """How to run the script once more: `words` are -m, if any, the script and its arguments.

    `directory` and `environment` are those from before the script has run; `options` go to `amp-doctor probe`.
    """

    words: tuple[str, ...]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    dry_run: bool = False


def verify(
    profile: Profile,
    recommendation: Recommendation,
    command: Command,
    steps: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Recommendation:
    """The recommendation with `verified` filled in; when it is refuted, the next best with the proof of both.

    `steps` are those to run, as many as were probed when it is None. `say` is told of each run before it starts.
    """
    steps = steps or profile.steps.attempted
    reason = _hopeless(profile, steps)
    if reason:
        return replace(recommendation, verified=Verified(INCONCLUSIVE, 0, (), reason))
    return _Proof(profile, command, steps, say).of(recommendation)


def _hopeless(profile: Profile, steps: int) -> str:
    if not steps:
        return "no optimizer step was seen, so there is nothing to repeat"
    if profile.ranks > 1:
        return f"the run has {profile.ranks} ranks, and only runs of one process can be repeated"
    if HALF & set(profile.precision.weights):
        return "the weights are in half precision already: FP32 weights cannot be patched in from outside"
    return ""


class _Proof:
    def __init__(self, profile: Profile, command: Command, steps: int, say: Callable[[str], None]) -> None:
        self._profile, self._command, self._steps, self._say = profile, command, steps, say
        self._emulated = command.dry_run or profile.device.kind == "cpu"
        self._runs: list[Run] = []
        # The profiles of the FP32 run, and of the latest.
        self._full = self._last = Profile()
        self._again: Run | None = None

    def of(self, recommendation: Recommendation) -> Recommendation:
        """All runs that are needed, and what they show."""
        full = self._run("float32", FLOAT32, self._command.dry_run)
        self._as_written(full)
        if full.failure or not full.steps:
            return self._marked(recommendation, judge(full, full))
        judgement = self._tried(recommendation, full)
        told, advice = judgement.reason, recommendation
        while judgement.verdict == REFUTED:
            revised = next_best(advice, self._profile)
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

    def _as_written(self, full: Run) -> None:
        use = self._profile.precision
        reduced = sorted(HALF & set(use.autocast))
        words = ", ".join([*reduced, *(["a GradScaler"] if use.scaler else [])])
        if words:
            self._run(f"as written ({words})", WRITTEN, self._emulated)
        else:
            # Nothing would differ: that would be the same run twice.
            self._runs.append(replace(full, settings="as written (float32 too, the same run)"))

    def _tried(self, advice: Recommendation, full: Run) -> Judgement:
        """Run what is advised; before it is called refuted, FP32 once more, in the same way."""
        if advice.dtype not in HALF:
            return self._float32(full)
        trial = Trial(
            advice.dtype,
            not HALF & set(self._profile.precision.autocast),
            advice.loss_scale.init_scale if advice.dtype == "float16" else None,
            tuple(one.layer for one in advice.keep_fp32) if advice.dtype == "float16" else (),
        )
        tried = self._run(f"as recommended ({_words(advice)})", trial, self._emulated)
        if not tried.failure and self._last.steps.attempted and trial.dtype not in self._last.precision.autocast:
            reason = f"autocast of {trial.dtype} could not be patched in: the script calls no module of torch.nn"
            return Judgement(INCONCLUSIVE, reason)
        judgement = judge(full, tried)
        if judgement.verdict == VERIFIED:
            return judgement
        return judge(full, tried, self._second())

    def _float32(self, full: Run) -> Judgement:
        """FP32 is what the others are compared with: what is left to see is that it repeats itself."""
        again = self._second()
        judgement = judge(full, again)
        if judgement.verdict != REFUTED:
            return judgement
        return Judgement(INCONCLUSIVE, f"the script does not repeat itself: {judgement.reason}")

    def _second(self) -> Run:
        if self._again is None:
            self._again = self._run("float32, once more", FLOAT32, self._emulated)
        return self._again

    def _run(self, settings: str, trial: Trial, dry_run: bool) -> Run:
        self._say(f"{settings}, {self._steps} steps")
        profile, failure = run_trial(self._command, trial, self._steps, dry_run)
        if not self._runs:
            self._full = profile
        self._last = profile
        made = run_of(settings + (", emulated" if dry_run and trial.dtype != "float32" else ""), profile, self._full)
        self._runs.append(replace(made, failure=failure))
        return self._runs[-1]


def _words(advice: Recommendation) -> str:
    if advice.dtype != "float16":
        return advice.dtype
    start = advice.loss_scale.init_scale
    kept = len(advice.keep_fp32)
    scale = f", init_scale {start:g}" if start is not None else ""
    return f"float16{scale}{f', {kept} in float32' if kept else ''}"


def run_trial(command: Command, trial: Trial, steps: int, dry_run: bool) -> tuple[Profile, str]:
    """One fresh process: its profile, an empty one when it wrote none, and how it failed."""
    mode = "calibrate" if trial.dtype == "float32" else "observe"
    with tempfile.TemporaryDirectory(prefix="amp-doctor-") as home, open(os.path.join(home, "said"), "w+b") as said:
        file = os.path.join(home, "profile.json")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "amp_doctor", "probe", "--mode", mode, "--steps", str(steps)),
                *("--every", str(max(1, steps // LOOKS)), "--profile", file, "--trial", trial.text()),
                *(("--dry-run", "cuda") if dry_run else ()),
                *command.options,
                *command.words,
            ],
            check=False,
            cwd=command.directory,
            env=_environment(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        said.seek(0)
        last = _last_words(said.read().decode("utf-8", "replace"))
        try:
            with open(file, encoding="utf-8") as stream:
                profile = from_values(json.load(stream), file)
        except (OSError, ValueError, ProfileError):
            return Profile(), last or f"the process ended with status {done.returncode} and no profile"
    failed = done.returncode != 0 or profile.ended in ("exception", "interrupted")
    return profile, (last or f"the process ended with status {done.returncode}") if failed else ""


def _last_words(said: str) -> str:
    """The line that names the exception, which may go on below; else the last one."""
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if _RAISED.match(line)]
    return (named or lines or [""])[-1].strip()[:_LONGEST]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Sets are ordered the same way in all runs, and this package is found from wherever they are started."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(amp_doctor.__file__)))
    paths = [*filter(None, [given.get("PYTHONPATH")]), home]
    return {"PYTHONHASHSEED": "0", **given, "PYTHONPATH": os.pathsep.join(paths)}
