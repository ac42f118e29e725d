"""Why a run leaves a finding of the linter open that another run might confirm or clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.agreement import LOOKS, OPERATORS
from amp_doctor.diagnosis.precision import any_half
from amp_doctor.diagnosis.scene import Agreement
from amp_doctor.diagnosis.trust import distrusted
from amp_doctor.diagnosis.words import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.finding import Finding

NOT_JUDGED = "not judged"


def unjudged(finding: Finding, profile: Profile) -> Agreement | None:
    """What the run lacked to have a say; None where no run ever has one, or there was no run."""
    if finding.code not in LOOKS or finding.cell is not None or not profile.steps.attempted:
        return None
    if finding.code in OPERATORS:
        return Agreement(NOT_JUDGED, _operators(finding, profile))
    for holds, words in _NEEDS.get(finding.code, ()):
        if not holds(profile):
            return Agreement(NOT_JUDGED, words)
    met = profile.first_nonfinite
    if met is not None:
        word, when = (
            "NaN" if met.value == "nan" else "infinities",
            f"in step {met.step}" if met.step else "at its start",
        )
        return Agreement(NOT_JUDGED, f"the run met {word} {when}, after which its numbers clear nothing")
    steps = count(profile.steps.attempted, "step")
    return Agreement(NOT_JUDGED, f"what it warns of was not seen in {steps}, which does not rule it out")


def _operators(finding: Finding, profile: Profile) -> str:
    replay = profile.replay
    if replay is None or not replay.recorded:
        why = f": {replay.reason}" if replay is not None and replay.reason else ""
        return f"no step was recorded, so its operators were not looked at{why}"
    if distrusted(profile):
        return "the recorded step came out otherwise when it was run again, so its operators say nothing"
    lines = range(finding.span.line, finding.span.end_line + 1)
    if not any(one.path == finding.path and one.line in lines for one in replay.lines):
        return "the one step that was replayed did not come by this line"
    return "in the one step that was replayed nothing went wrong on this line, which other numbers may change"


def _half_weights(profile: Profile) -> bool:
    return any_half(profile.precision.weights)


def _float16(profile: Profile) -> bool:
    return "float16" in profile.precision.autocast


def _autocast(profile: Profile) -> bool:
    return any_half(profile.precision.autocast)


def _scaler(profile: Profile) -> bool:
    return profile.precision.scaler


def _unscaled(profile: Profile) -> bool:
    return not profile.precision.scaler


_WEIGHTS = (_half_weights, "no weights in half were trained in this run")
_REGION = (_float16, "the run did not enter autocast to float16")
_SCALED = (_scaler, "no GradScaler scaled in this run")
# Code of the linter -> the states that a run must be in to have a say, and what is said when it was not.
_NEEDS: dict[str, tuple[tuple[Callable[[Profile], bool], str], ...]] = {
    "AMP105": (_WEIGHTS,),
    "AMP106": (_SCALED,),
    "AMP201": (_SCALED,),
    "AMP206": (_SCALED,),
    "AMP209": (_REGION, (_unscaled, "the losses of this run were scaled")),
    "AMP210": (_SCALED,),
    "AMP239": (_SCALED, _REGION),
    "AMP304": (_WEIGHTS,),
    "AMP316": ((_autocast, "the run did not enter autocast"),),
    "AMP401": (_WEIGHTS,),
    "AMP402": (_WEIGHTS, _SCALED),
    "AMP403": (_WEIGHTS,),
    "AMP404": (_WEIGHTS,),
    "AMP410": (_REGION,),
}
