"""What the parts of the probe's report have in common: the values they tell of, and the room they have."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.report.bars import BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding


@dataclass(frozen=True, slots=True)
class Sheet:
    """`findings` worst first; `width` in columns; `glyphs` from nothing to full, to draw bars with."""

    profile: Profile
    findings: Sequence[Finding]
    recommendation: Recommendation
    width: int
    glyphs: str = BLOCKS

    @property
    def healthy(self) -> bool:
        """Nothing was found, and the run came to a good end: then what is well needs few words."""
        profile = self.profile
        return not self.findings and profile.first_nonfinite is None and profile.ended in ("steps", "finished")

    @property
    def scale_in_use(self) -> float | None:
        """The loss scale that was last in force; None without a GradScaler."""
        scales = [event.scale for event in self.profile.scaler if isfinite(event.scale) and event.scale > 0]
        return scales[-1] if scales else None

    @property
    def scale_advised(self) -> float | None:
        """The loss scale to start with; None when none is admissible."""
        return self.recommendation.loss_scale.init_scale

    @property
    def scale_drawn(self) -> float:
        """The scale at which gradients are drawn: the one in use, else the advised one, else 1."""
        return self.scale_in_use or self.scale_advised or 1.0
