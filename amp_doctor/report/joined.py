"""The findings of the linter joined with what a run of the same script says about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.agreement import agreement, layers_beside
from amp_doctor.diagnosis.scene import CLEARED, Agreement
from amp_doctor.diagnosis.unjudged import unjudged
from amp_doctor.report.finding_json import finding_values
from amp_doctor.report.text import source_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Joined:
    """A finding of the linter, what the run says about it, and the layers that it may explain.

    `agreed` may also say that the run leaves it open, and why; None where no run has a say.
    """

    finding: Finding
    agreed: Agreement | None
    layers: tuple[str, ...] = ()
    line: str = ""

    @property
    def cleared(self) -> bool:
        """Whether the run went through what the finding is about, and all was well."""
        return self.agreed is not None and self.agreed.verdict == CLEARED

    @property
    def told(self) -> Finding:
        """The finding with what the run says in its message."""
        if self.agreed is None:
            return self.finding
        codes = f"{', '.join(self.agreed.codes)}: " if self.agreed.codes else ""
        words = f"{self.finding.message}; {self.agreed.verdict} by the run: {codes}{self.agreed.words}"
        return replace(self.finding, message=words)

    def values(self, sources: Mapping[str, str]) -> dict[str, Any]:
        """The finding as the linter's JSON has it, and what the run says as `run`."""
        run = None
        if self.agreed:
            told = self.agreed
            run = {"verdict": told.verdict, "message": told.words, "codes": list(told.codes)}
        return {**finding_values(self.finding, sources), "layers": list(self.layers), "run": run}


def joined(
    lint: Iterable[Finding], profile: Profile, observed: Sequence[Finding], sources: Mapping[str, str]
) -> list[Joined]:
    """One by one, in their order; suppressed ones are left out. All paths are told from the same directory."""
    out = []
    for one in lint:
        if one.suppressed:
            continue
        line = source_line(sources, one.path, one.span.line, one.cell)
        layers = layers_beside(one, profile, observed, line)
        agreed = agreement(one, profile, observed, line) or unjudged(one, profile)
        out.append(Joined(one, agreed, tuple(layers), line))
    return out
