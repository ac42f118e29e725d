"""What a session holds -> Profile."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from amp_doctor.diagnosis.profile import (
    ROLES,
    UPDATE,
    WEIGHT,
    Layer,
    Memory,
    Precision,
    Profile,
    Site,
    Steps,
)
from amp_doctor.probe.device import describe
from amp_doctor.probe.dtypes import dtype_name
from amp_doctor.probe.recording import NO_STEP
from amp_doctor.probe.weights import optimizer_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.probe.count import Tally
    from amp_doctor.probe.device_count import DeviceTally
    from amp_doctor.probe.session import Session

# Libraries that scale losses and step in their own way, by the module that does it.
_NOT_COVERED = {"deepspeed.runtime.engine": "DeepSpeed", "apex.amp": "apex.amp", "megatron.core": "Megatron"}


def profile_of(session: Session, how: str, seconds: float) -> Profile:
    """The profile as it stands."""
    settings, run = session.settings, session.steps.run
    for module, record in session.names.modules():
        record.buffers = {
            name: dtype_name(buffer.dtype)
            for name, buffer in module._buffers.items()
            if isinstance(buffer, Tensor) and buffer.is_floating_point()
        }
    logs = tuple(optimizer_log(log) for log in session.steps.logs)
    layers = _layers(session)
    notes = [*session.notes, *_notes(session)]
    return Profile(
        torch=str(torch.__version__),
        device=settings.emulated if settings.dry_run else describe(session.device),
        command=settings.command,
        script=settings.script,
        mode=settings.mode,
        steps=Steps(settings.steps, run.attempted, run.taken, run.skipped),
        optimizers=logs,
        ended=how,
        ranks=1,
        seconds=round(seconds, 3),
        loss=tuple(session.loss),
        scaler=session.nonfinite.events(),
        layers=layers,
        operators=session.operators.operators(session.names.full),
        first_nonfinite=session.nonfinite.first(),
        places=dict(session.places),
        precision=Precision(
            tuple(sorted(session.scalers.autocast)),
            session.scalers.used,
            tuple(sorted({layer.sites[WEIGHT].dtype for layer in layers if WEIGHT in layer.sites})),
            session.scalers.widened,
        ),
        memory=_memory(session, sum(log.parameters for log in logs), sum(log.state_elements for log in logs)),
        notes=tuple(notes),
    )


def _layers(session: Session) -> tuple[Layer, ...]:
    found: dict[str, Layer] = {}
    sampled = session.settings.every > 1
    for record in session.names.records:
        if record.tallies or record.observed:
            name = session.names.full(record)
            order = record.order if record.order >= 0 else len(session.names.records)
            layer = Layer(
                name,
                record.type,
                record.source,
                order,
                _sites(record.tallies, sampled),
                _sites(record.observed, sampled),
                record.buffers,
            )
            found[name] = found[name] + layer if name in found else layer
    return tuple(sorted(found.values(), key=lambda layer: (layer.order, layer.name)))


def _sites(tallies: Mapping[str, Tally | DeviceTally], sampled: bool) -> dict[str, Site]:
    return {
        role: Site(
            tally.dtype,
            tally.histogram(),
            sampled or tally.sampled or role in (WEIGHT, UPDATE),
            {name: int(count) for name, count in tally.swallowed.items()},
        )
        for role in ROLES
        if (tally := tallies.get(role)) is not None and tally.dtype
    }


def _memory(session: Session, parameters: int, state_elements: int) -> Memory:
    owned = (p for module, _ in session.names.modules() for p in module._parameters.values())
    matrices = [p for p in owned if p is not None and p.dim() > 1]
    return Memory(
        parameters,
        state_elements,
        session.saved_bytes,
        max((p.numel() // p.shape[0] for p in matrices if p.shape[0]), default=0),
        max((p.numel() for p in matrices), default=0),
    )


def _notes(session: Session) -> list[str]:
    notes = [
        f"{name} scales losses and steps in its own way, which is not covered"
        for module, name in _NOT_COVERED.items()
        if module in sys.modules
    ]
    if not session.steps.logs:
        notes.append(NO_STEP)
    return notes
