"""The first NaN or infinity that was not expected, and what the scaler did about the others.

Expected are negative infinities alone in an activation (attention masks), and infinite gradients on a step that the
GradScaler skipped: that is how it finds its scale. So are a loss, and layers, that were computed from such gradients (a
gradient penalty), when the skipping ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, isnan
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import PHASES, FirstNonfinite, ScalerEvent
from amp_doctor.probe.names import calling_line

if TYPE_CHECKING:
    from torch import Tensor

    from amp_doctor.diagnosis.profile import Source
    from amp_doctor.probe.names import Record
    from amp_doctor.probe.session import Session


@dataclass(frozen=True, slots=True)
class _Met:
    """A NaN or an infinity, as `value` says, and the layer and operator it was met at, where they are known.

    `step` is filled in when the step has ended.
    """

    phase: str
    record: Record | None
    value: str
    operator: str | None
    source: Source | None
    step: int = 0


class Nonfinite:
    """Holds what a step has met until it is known whether the step was skipped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # The first one in the step under way.
        self._pending: _Met | None = None
        self._skipped_by_scaler = False
        self._first: _Met | None = None
        # Whether the step under way has asked for gradients of a scaled loss, which it may compute with.
        self._reused = False
        # What came of such gradients, the first time in the steps that the scaler is skipping now.
        self._forgivable: _Met | None = None
        self._events: list[tuple[int, float, bool, Record | None]] = []
        # A loss that is not finite: the next step is counted even if it is not its turn.
        self.alarmed = False

    def met(self, record: Record | None, phase: str, values: Tensor, operator: str | None = None) -> None:
        """A tensor holds a NaN or an infinity."""
        nan = bool(values.isnan().any())
        if phase == "forward" and not nan and not bool((values == inf).any()):
            return
        self._meet(phase, record, "nan" if nan else "inf", operator)

    def counted(self, record: Record | None, phase: str, *, nan: bool, positive: bool) -> None:
        """The counts of a step, read from a device, hold a NaN or an infinity; negative ones alone may be a mask."""
        if nan or positive or phase != "forward":
            self._meet(phase, record, "nan" if nan else "inf", None)

    def loss_is(self, value: float) -> None:
        """The loss of the step under way."""
        if not isfinite(value):
            self.alarmed = True
            self._meet("loss", None, "nan" if isnan(value) else "inf", None)

    def scaled_gradients_asked(self) -> None:
        """The script has gradients of a scaled loss in its hands, before the scaler has looked at them."""
        self._reused = True

    def scaler_stepped(self, scale: float, skipped: bool) -> None:
        """A GradScaler took or skipped a step."""
        self._skipped_by_scaler |= skipped
        layer = self._pending.record if skipped and self._pending is not None else None
        self._events.append((self._session.step + 1, scale, skipped, layer))

    def step_ends(self) -> None:
        """Decide whether what was met is a finding; `session.step` has just been counted."""
        self._settle(self._session.step)

    def run_ends(self) -> None:
        """What the unfinished step has met counts: the script may have raised because of it.

        So does what no later step has cured.
        """
        if self._pending is not None:
            self._settle(self._session.step + 1)
        self._first = self._first or self._forgivable

    def first(self) -> FirstNonfinite | None:
        """The first unexpected one, named."""
        met = self._first
        if met is None:
            return None
        name = self._session.names.full(met.record) if met.record is not None else met.phase
        source = met.source or (met.record.source if met.record is not None else None)
        return FirstNonfinite(met.step, met.phase, name, met.value, met.operator, source)

    @property
    def broken(self) -> bool:
        """Whether a NaN or an infinity was met that nobody expects."""
        return self._first is not None

    def events(self) -> tuple[ScalerEvent, ...]:
        """One per step: skipped when any optimizer's was."""
        found: dict[int, tuple[float, bool, Record | None]] = {}
        for step, scale, skipped, layer in self._events:
            if step not in found or (skipped and not found[step][1]):
                found[step] = (scale, skipped, layer)
        names = self._session.names
        return tuple(
            ScalerEvent(step, scale, skipped, names.full(layer) if layer is not None else None)
            for step, (scale, skipped, layer) in found.items()
        )

    def _meet(self, phase: str, record: Record | None, value: str, operator: str | None) -> None:
        if self._pending is None or PHASES.index(phase) < PHASES.index(self._pending.phase):
            source = calling_line() if operator is not None else None
            # A loss is nobody's layer; where its backward pass was started is not far from it.
            source = self._session.gradients.line if phase == "loss" else source
            self._pending = _Met(phase, record, value, operator, source)

    def _settle(self, step: int) -> None:
        pending, self._pending = self._pending, None
        skipped, self._skipped_by_scaler = self._skipped_by_scaler, False
        reused, self._reused = self._reused, False
        if pending is None:
            self._forgivable = self._forgivable if skipped else None
            return
        if self._first is not None or (skipped and pending.phase == "backward"):
            return
        # Weights are counted when a model is first met, before the first step.
        met = replace(pending, step=0 if pending.phase == "weight" and step == 1 else step)
        if skipped and reused and met.phase in ("forward", "loss"):
            self._forgivable = self._forgivable or met
        else:
            self._first = self._forgivable or met
