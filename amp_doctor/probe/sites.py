"""Where a tensor is counted: one tally per layer and role, on the device where the tensor lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from amp_doctor.diagnosis.profile import ACTIVATION, ACTIVATION_GRAD
from amp_doctor.probe.count import Tally
from amp_doctor.probe.device_count import DevicePool, DeviceTally, on_host
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.settings import AUTO

if TYPE_CHECKING:
    from torch import Tensor

    from amp_doctor.probe.names import Record
    from amp_doctor.probe.session import Session

# So many calls of one module in a step are counted in full, then one of so many.
_CALLS = 64
_SPARSE = 16


class Sites:
    """Sites what the collectors hand over, and tells `Nonfinite` of NaN and infinities."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: dict[Tally | DeviceTally, int] = {}
        self._pools: dict[torch.device, DevicePool] = {}
        self._phases: dict[DeviceTally, tuple[Record, str]] = {}

    def tally(self, record: Record, role: str, device: torch.device, *, sampled: bool = False) -> Tally | DeviceTally:
        """Where a role of a layer is counted: what is seen in reduced precision after calibration stays apart."""
        session, tallies = self._session, record.tallies
        reduced = session.scalers.used or session.scalers.autocast
        if reduced and session.settings.mode == AUTO and not session.calibrating:
            tallies = record.observed
        tally = tallies.get(role)
        if tally is None:
            tally = tallies[role] = Tally() if on_host(device) else self._pool(device).tally()
        tally.sampled |= sampled
        return tally

    def add(self, record: Record, role: str, values: Tensor, phase: str, *, scaled: bool = False) -> None:
        """Count a tensor; gradients come multiplied by the loss scale in force."""
        tally = self.tally(record, role, values.device)
        if role in (ACTIVATION, ACTIVATION_GRAD) and self._passes(tally):
            return
        if isinstance(tally, DeviceTally):
            # The first of a step to touch the site: what the step's counts show is filed under it.
            self._phases.setdefault(tally, (record, phase))
        gradients = self._session.gradients
        rest = gradients.rest if scaled else 1.0
        if rest != 1.0:
            tally.dtype = tally.dtype or dtype_name(values.dtype)
            values = (values if values.dtype is torch.float64 else values.float()) / rest
        if tally.add(values, gradients.shift if scaled else 0):
            self._session.nonfinite.met(record, phase, values)

    def step_ends(self) -> None:
        """Every module may be called anew."""
        self._calls.clear()

    def read_devices(self) -> None:
        """Read what the step has counted on GPUs: the one time the host waits."""
        for pool in self._pools.values():
            for tally, nan, positive, _negative in pool.read():
                record, phase = self._phases[tally]
                self._session.nonfinite.counted(record, phase, nan=nan > 0, positive=positive > 0)
        self._phases.clear()

    def _passes(self, tally: Tally | DeviceTally) -> bool:
        """Whether to leave out a call: a cell called for every element of a sequence is sampled after a while."""
        calls = self._calls[tally] = self._calls.get(tally, 0) + 1
        if calls <= _CALLS or calls % _SPARSE == 0:
            return False
        tally.sampled = True
        return True

    def _pool(self, device: torch.device) -> DevicePool:
        if device not in self._pools:
            self._pools[device] = DevicePool(device)
        return self._pools[device]
