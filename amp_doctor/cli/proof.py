"""`probe --verify`: what is needed to run the script again, taken down before it runs for the first time."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from amp_doctor.probe.interrupts import DEADLY, Interrupts
from amp_doctor.probe.rerun import CUT, Command, ranks_of, unrepeatable
from amp_doctor.probe.saving import ProfileFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation


@dataclass(frozen=True, slots=True)
class Proof:
    """How to run the script again, and for how many steps; None stands for as many as were probed."""

    command: Command
    steps: int | None
    # Where the profile is saved, and with it what came of the proof.
    file: str | None = None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Proof:
        """As the options say, from the directory and the environment that there are now."""
        words = (*(("-m",) if options["as_module"] else ()), options["script"], *options["arguments"])
        given = [("--time-limit", options["time_limit"]), ("--scratch", options["scratch"])]
        more = [text for name, value in given if value is not None for text in (name, str(value))]
        now = dict(os.environ)
        here = os.getcwd()
        command = Command(words, here, now, tuple(more), ranks=ranks_of(now), unrepeatable=unrepeatable(now))
        file = os.path.abspath(options["profile"]) if options["profile"] else None
        return cls(command, options["verify_steps"], file)

    def given(self, profile: Profile, script_status: int | None) -> Recommendation | None:
        """The recommendation, tried; None when the script failed, and there is nothing to repeat."""
        from amp_doctor.diagnosis.recommend import recommend
        from amp_doctor.diagnosis.recommendation import Verified
        from amp_doctor.probe.release import release
        from amp_doctor.probe.verify import verify

        if profile.ended == "interrupted":
            return None
        advice = recommend(profile)
        if script_status is not None:
            failed = Verified("inconclusive", 0, (), "the script failed, so it was not run again")
            return replace(advice, verified=failed)
        try:
            with _interruptible():
                release()
                # As the first run went: what asked for CUDA there will ask for it again.
                command = replace(self.command, dry_run=profile.device.emulated)
                return verify(profile, advice, command, self.steps, _say)
        except KeyboardInterrupt:
            return replace(advice, verified=Verified("inconclusive", 0, (), CUT))

    def save(self, profile: Profile, advice: Recommendation | None) -> None:
        """Put it into the saved profile, for `report` to tell again; a ProfileError when that cannot be written."""
        if self.file is not None and advice is not None:
            ProfileFile(self.file).prove(profile, advice)


def was_cut(advice: Recommendation | None) -> bool:
    """Whether the runs were interrupted: then the status to exit with is that of an interrupted program."""
    return advice is not None and advice.verified is not None and advice.verified.reason == CUT


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and the signals that end a process end the runs, whatever handlers the script has left; then comes the
    report, and then the end by that signal.
    """
    before: dict[int, Any] = {}

    def arrives(number: int, frame: Any) -> None:
        earlier: Any = before.get(number)
        if isinstance(getattr(earlier, "__self__", None), Interrupts):
            earlier(number, frame)
        raise KeyboardInterrupt

    try:
        for number in (signal.SIGINT, *DEADLY):
            with suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, arrives)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier if earlier is not None else signal.SIG_DFL)


def _say(run: str) -> None:
    sys.stderr.write(f"amp-doctor: verifying: {run}\n")
    sys.stderr.flush()
