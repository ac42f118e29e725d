"""What of a replay may be built on: nothing, where the recorded step did not come out as it was in the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Operator, Profile

NOT_EXACT = (
    "the recorded step, run again in FP32, came out otherwise than in the run: "
    "nothing that its replay has shown is used here"
)


def distrusted(profile: Profile) -> bool:
    """Whether the replay is that of another step: numbers drawn anew, or anything else that does not repeat itself."""
    return profile.replay is not None and profile.replay.exact is False


def trusted(profile: Profile) -> Profile:
    """The profile without what a replay has found that cannot be trusted; what the run itself has shown stays.

    How much arithmetic and memory the step takes does not depend on the numbers, and stays as well.
    """
    if profile.replay is None or not distrusted(profile):
        return profile
    replay = replace(profile.replay, keep=(), outcomes=())
    return replace(profile, operators=tuple(filter(_seen_in_the_run, profile.operators)), replay=replay)


def _seen_in_the_run(one: Operator) -> bool:
    """The run knows of magnitudes beyond the range; all other numbers are those of a replay."""
    if not one.precision:
        return True
    replayed = one.lost or one.error or one.flops or one.casts
    return one.trouble == "overflow" and one.phase == "forward" and one.precision == "O1/float16" and not replayed
