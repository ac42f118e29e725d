"""A finding of the linter beside a run of the same script, and what the one says about the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Layer, Profile
    from amp_doctor.finding import Finding

CONFIRMED, CLEARED = "confirmed", "cleared"
# So many layers of one attribute's name are one layer in a list of blocks; the name says nothing about more.
MOST = 64
_ASSIGNED = re.compile(r"^\s*(?:self\.)?(\w+)\s*(?::[^=]+)?=(?!=)")


@dataclass(frozen=True, slots=True)
class Agreement:
    """`verdict` is confirmed or cleared, `words` a clause that says why; `codes` and `layers` are what it rests on."""

    verdict: str
    words: str
    codes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """The finding, the run, the run's own findings, and the text of the line that the finding stands on."""

    finding: Finding
    profile: Profile
    observed: Sequence[Finding]
    line: str = ""

    def met(self, *codes: str) -> list[Finding]:
        """The findings of the run that have one of the codes."""
        return [one for one in self.observed if one.code in codes]

    def covers(self, path: str, line: int) -> bool:
        """Whether a line lies in the span of the finding."""
        return path == self.finding.path and self.finding.span.line <= line <= self.finding.span.end_line

    def here(self, *codes: str) -> tuple[str, ...]:
        """Those of the codes that the run has found on the lines of the finding."""
        return tuple(dict.fromkeys(one.code for one in self.met(*codes) if self.covers(one.path, one.span.line)))

    def named(self) -> list[Layer]:
        """The layers that the line assigns, told by the name of the attribute: `self.head = ...` -> `head`."""
        assigned = _ASSIGNED.match(self.line)
        layers = [one for one in self.profile.layers if assigned and one.name.rpartition(".")[2] == assigned[1]]
        return layers if len(layers) <= MOST else []
