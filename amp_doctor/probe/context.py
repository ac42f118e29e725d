"""`with Probe(steps=50) as probe:` for notebooks and larger programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from amp_doctor.probe.session import Session
from amp_doctor.probe.settings import AUTO, Settings, Stop

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding


class Probe:
    """Probes what runs inside a `with` block; training is ended after `steps` optimizer steps.

    After the block `profile` holds what was seen, `findings` and `recommendation` what it means.
    """

    def __init__(
        self, steps: int = 50, mode: str = AUTO, every: int = 1, layers: str | None = None, script: str = ""
    ) -> None:
        self._session = Session(Settings(steps, mode, every, layers, script=script))

    def __enter__(self) -> Self:
        self._session.install()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        stopped = isinstance(error, Stop)
        try:
            how = (
                "finished" if error is None else "interrupted" if isinstance(error, KeyboardInterrupt) else "exception"
            )
            if how == "exception" and error is not None:
                self._session.failed(error)
            self._session.end("steps" if stopped else how)
        finally:
            self._session.remove()
        return stopped

    @property
    def profile(self) -> Profile:
        """What was seen so far, or in all once the block is left."""
        return self._session.profile or self._session.snapshot()

    @property
    def findings(self) -> list[Finding]:
        """The diagnoses, worst first."""
        from amp_doctor.diagnosis.symptoms import findings

        return findings(self.profile)

    @property
    def recommendation(self) -> Recommendation:
        """What to use."""
        from amp_doctor.diagnosis.recommend import recommend

        return recommend(self.profile)
