"""Installs everything that watches a run, owns it, takes it away, and makes the profile.

Do no harm: hooks return nothing, draw no random numbers and keep no graph; a collector that raises is switched off with
a note. The profile is made and handed on before `Stop` is raised, whatever the script does with the exception.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from amp_doctor.diagnosis.profile import RAISED, Source
from amp_doctor.diagnosis.raised import foretelling
from amp_doctor.probe.activations import Activations
from amp_doctor.probe.clipping import Clipping
from amp_doctor.probe.device import describe
from amp_doctor.probe.eager import Eager
from amp_doctor.probe.gradients import Gradients
from amp_doctor.probe.guard import Guard
from amp_doctor.probe.names import Names, own_line
from amp_doctor.probe.nonfinite import Nonfinite
from amp_doctor.probe.operators import OperatorLog
from amp_doctor.probe.patches import Patches
from amp_doctor.probe.refusals import refusal
from amp_doctor.probe.replaying import Replaying
from amp_doctor.probe.saved import SavedTensors, in_backward, others_hooked, watch_hooks
from amp_doctor.probe.scaler import Scalers
from amp_doctor.probe.settings import AUTO, CALIBRATE, Settings, Stop
from amp_doctor.probe.sites import Sites
from amp_doctor.probe.steps import StepCounter
from amp_doctor.probe.summary import profile_of
from amp_doctor.probe.traces import own_place
from amp_doctor.probe.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.probe.impose import Imposed
    from amp_doctor.probe.names import Record

# Backward passes without a step of torch.optim after which they are taken for steps themselves.
_PATIENCE = 200


class Session:
    """One probe of one process. `on_end` gets the profile once, before the script is stopped."""

    def __init__(self, settings: Settings, on_end: Callable[[Profile], None] | None = None) -> None:
        self.settings = settings
        self.active = False
        self.step = 0
        self.stops = 0
        self.notes: list[str] = []
        self.loss: list[float] = []
        self.places: dict[str, Source] = {}
        self.on_step: Callable[[int, int], None] | None = None
        self.firm_end: Callable[[], None] = lambda: None
        self.names = Names()
        self.sites = Sites(self)
        self.activations = Activations(self)
        self.gradients = Gradients(self)
        self.scalers = Scalers(self)
        self.clipping = Clipping(self)
        self.steps = StepCounter(self)
        self.weights = Weights(self)
        self.operators = OperatorLog(self)
        self.nonfinite = Nonfinite(self)
        self.replaying = Replaying(self)
        self.device: torch.device | None = None
        self.native_bf16 = False
        # One run of a proof: of the tensors only the gradients of weights are counted.
        self.trial = bool(settings.trial)
        self.imposed: Imposed | None = None
        self.saved_bytes: int | None = None
        self.counting = True
        self.calibrating = settings.mode != "observe"
        self.profile: Profile | None = None
        self._on_end = on_end
        self._patches = Patches()
        self._off: set[str] = set()
        self._saved: SavedTensors | None = None
        self._backwards = 0
        self._began = time.perf_counter()
        self._eager = Eager()

    # --- life ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Watch this process from now on."""
        self.active = True
        self._began = time.perf_counter()
        self._eager.install(self._patches, self.note)
        self.gradients.patch(self._patches)
        self.scalers.patch(self._patches)
        self.clipping.patch(self._patches)
        watch_hooks(self._patches)
        self.steps.install()
        self.activations.install()

    def remove(self) -> None:
        """Give everything back; twice is once."""
        self.active = False
        self.counting = False
        self._stop_watching()
        self.replaying.leave()
        self.steps.remove()
        self._patches.undo()
        self._eager.remove()

    def failed(self, error: BaseException) -> bool:
        """The script has raised; whether it is what a GPU would have raised as well, as far as that can be told."""
        with self.guard("refused operators"):
            place = own_place(error)
            if place is not None:
                self.places[RAISED] = Source(*place)
            met = refusal(error, self.names)
            if met is not None:
                self.operators.refused.append(met)
            return met is not None or bool(foretelling(str(error)))
        return False

    def end(self, how: str) -> Profile:
        """The profile of what was seen, handed to `on_end`; the first call decides how the run ended."""
        if self.profile is None:
            self.counting = False
            self._stop_watching()
            with self.guard("device counts"):
                self.read_devices()
            self.nonfinite.run_ends()
            self.profile = self.replaying.replayed(self.snapshot(how))
            if self._on_end is not None:
                self._on_end(self.profile)
        return self.profile

    def snapshot(self, how: str = "") -> Profile:
        """The profile as it stands."""
        with torch._C.DisableTorchFunction():
            return profile_of(self, how, time.perf_counter() - self._began)

    def note(self, text: str) -> None:
        """Say something in the profile, once."""
        if text not in self.notes:
            self.notes.append(text)

    def place(self, name: str) -> None:
        """The line of the user's code that does this for the first time."""
        if name not in self.places and (line := own_line()) is not None:
            self.places[name] = line

    def guard(self, collector: str) -> Guard:
        """A net for one collector: what it raises becomes a note, and it is switched off."""
        return Guard(self, collector)

    def switch_off(self, collector: str, error: BaseException) -> None:
        """A collector has raised."""
        self._off.add(collector)
        self.note(f"the collector of {collector} was switched off: {type(error).__name__}: {error}")
        if collector == "activations":
            self.activations.remove()

    # --- counting -----------------------------------------------------------------------------------------------

    def wanted(self, record: Record) -> bool:
        """Whether `--layers` lets a layer be counted."""
        if self.settings.layers is None:
            return True
        from fnmatch import fnmatchcase

        return fnmatchcase(record.path, self.settings.layers) or fnmatchcase(
            self.names.full(record), self.settings.layers
        )

    def read_devices(self) -> None:
        """Read what the step has counted on GPUs: the one time the host waits."""
        self.sites.read_devices()
        self.operators.read()

    # --- what the collectors report -----------------------------------------------------------------------------

    def root_enters(self, module: nn.Module) -> None:
        """The forward pass of an outermost module begins."""
        if self.names.of(module) is None:
            self.names.meet(module)
            self.gradients.hook(module.parameters())
            self._meet_device(module)
            if self.counting and torch.is_grad_enabled() and not self.trial:
                with self.guard("weights"):
                    self.weights.count_all(module)
                    # Read at once: what the first step makes of the weights must not be taken for how they began.
                    self.read_devices()
        elif self.step in (1, 2, 5, 10):
            # Layers that were frozen at first.
            self.gradients.hook(module.parameters())
        self.replaying.leave()
        if not self.step and self.counting and torch.is_grad_enabled() and not self.trial:
            self.replaying.first_forward()
        measured = self.step == min(1, self.settings.steps - 1) and self.counting and torch.is_grad_enabled()
        if measured and not self.trial and not in_backward() and not others_hooked():
            self._saved = SavedTensors()
            self._saved.start()

    def root_leaves(self, _module: nn.Module | None = None) -> None:
        """It has ended."""
        if self._saved is not None:
            self._saved.stop()
            self.saved_bytes = max(self.saved_bytes or 0, self._saved.bytes)
            self._saved = None

    def backward_starts(self) -> None:
        """A backward pass begins."""
        self._backwards += 1

    def backward_ends(self) -> None:
        """It has ended."""
        self.steps.backward_ends()
        if self.steps.leader is None and self._backwards >= max(_PATIENCE, 4 * self.settings.steps):
            self.note(
                f"{self._backwards} backward passes and no step of a torch.optim optimizer: the run was ended there. "
                "An optimizer that is no torch.optim.Optimizer cannot be counted"
            )
            self.stop()

    def step_ends(self, number: int) -> None:
        """The leading optimizer has made an attempt, or so many when it came to lead: those are steps of the run."""
        if self.profile is not None:
            self.stop()
        self.replaying.step_ends()
        with self.guard("loss"):
            self._close_losses()
        with self.guard("device counts"):
            self.read_devices()
        self.step += number
        self.sites.step_ends()
        self.nonfinite.step_ends()
        if self.on_step is not None:
            self.on_step(self.step, self.settings.steps)
        if self.step >= self.settings.steps:
            self.stop()
        self._plan()

    def other_stepped(self) -> None:
        """Another optimizer has."""
        self.gradients.losses.clear()
        if self.profile is not None:
            self.stop()

    def stop(self) -> None:
        """End the script: the profile first, then `Stop`; a script that swallows it twice is ended firmly."""
        self.end("steps")
        self.stops += 1
        if self.stops > 2:
            self.firm_end()
        raise Stop

    # --- inside -------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """What the next step is for."""
        settings = self.settings
        self.calibrating = settings.mode == CALIBRATE or (
            settings.mode == AUTO and self.step < max(1, settings.steps // 5)
        )
        self.counting = self.step % settings.every == 0 or self.nonfinite.alarmed
        self.activations.rest()
        if self.counting and "activations" not in self._off:
            self.activations.install()
        else:
            self.activations.remove()
        if not self.trial:
            self.replaying.step_begins()

    def _close_losses(self) -> None:
        """The loss of a step: the sum over its backward passes, as with accumulation."""
        losses, self.gradients.losses = self.gradients.losses, []
        if losses:
            value = sum(float(loss.item()) / scale for loss, scale in losses)
            self.loss.append(value)
            self.nonfinite.loss_is(value)

    def _stop_watching(self) -> None:
        self.replaying.stop()
        self.activations.remove()
        self.gradients.remove()
        self.root_leaves()

    def _meet_device(self, module: nn.Module) -> None:
        parameter = next(module.parameters(), None)
        if self.device is None and parameter is not None:
            self.device = parameter.device
            # A dry run is calibrated in float32, which is no slower; a proof compares with it.
            found = describe(self.device)
            self.native_bf16 = found.native_bf16 and not (found.emulated or self.trial)
