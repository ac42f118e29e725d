"""`probe --verify`: what is needed to run the script again, taken down before it runs for the first time."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from amp_doctor.errors import AmpDoctorError

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.probe.verify import Command


@dataclass(frozen=True, slots=True)
class Proof:
    """How to run the script again, and for how many steps; None stands for as many as were probed."""

    command: Command
    steps: int | None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Proof:
        """As the options say, from the directory and the environment that there are now."""
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise AmpDoctorError("--verify: a run of several ranks cannot be repeated; leave it out under torchrun")
        from amp_doctor.probe.verify import Command

        words = (*(("-m",) if options["as_module"] else ()), options["script"], *options["arguments"])
        given = [("--time-limit", options["time_limit"]), ("--scratch", options["scratch"])]
        more = [text for name, value in given if value is not None for text in (name, str(value))]
        return cls(Command(words, os.getcwd(), dict(os.environ), tuple(more)), options["verify_steps"])  # noqa: PTH109

    def given(self, profile: Profile, script_status: int | None) -> Recommendation | None:
        """The recommendation, tried; None when the script failed, and there is nothing to repeat."""
        from amp_doctor.diagnosis.recommend import recommend
        from amp_doctor.diagnosis.recommendation import Verified
        from amp_doctor.probe.verify import verify

        if profile.ended == "interrupted":
            return None
        advice = recommend(profile)
        if script_status is not None:
            failed = Verified("inconclusive", 0, (), "the script failed, so it was not run again")
            return replace(advice, verified=failed)
        try:
            # As the first run went: what asked for CUDA there will ask for it again.
            command = replace(self.command, dry_run=profile.device.emulated)
            return verify(profile, advice, command, self.steps, _say)
        except KeyboardInterrupt:
            return replace(advice, verified=Verified("inconclusive", 0, (), "it was interrupted"))


def _say(run: str) -> None:
    sys.stderr.write(f"amp-doctor: verifying: {run}\n")
    sys.stderr.flush()
