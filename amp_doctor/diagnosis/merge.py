"""Two profiles of one run, of steps or of ranks, into one; the order of the arguments does not matter."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import zip_longest

from amp_doctor.diagnosis.profile import (
    ENDS,
    PHASES,
    FirstNonfinite,
    Layer,
    Operator,
    OptimizerLog,
    Precision,
    Profile,
    ScalerEvent,
)
from amp_doctor.numerics.formats import tellable


def merged(a: Profile, b: Profile) -> Profile:
    """What both have seen; `Profile()` changes nothing."""
    if b == Profile():
        return a
    if a == Profile():
        return b
    first = min(a, b, key=_title)
    return replace(
        first,
        steps=max(a.steps, b.steps, key=lambda steps: (steps.attempted, steps.taken, astuple(steps))),
        optimizers=_optimizers(a.optimizers, b.optimizers),
        ended=max(a.ended, b.ended, key=ENDS.index),
        ranks=a.ranks + b.ranks,
        seconds=max(a.seconds, b.seconds),
        loss=_losses(a, b),
        scaler=_events(a.scaler, b.scaler),
        layers=_layers(a.layers, b.layers),
        operators=_operators(a.operators, b.operators),
        first_nonfinite=min(filter(None, (a.first_nonfinite, b.first_nonfinite)), key=_age, default=None),
        precision=Precision(
            tuple(sorted({*a.precision.autocast, *b.precision.autocast})),
            a.precision.scaler or b.precision.scaler,
            tuple(sorted({*a.precision.weights, *b.precision.weights})),
            a.precision.calibrated or b.precision.calibrated,
        ),
        memory=max(a.memory, b.memory, key=lambda one: (one.parameters, one.saved_bytes or 0, repr(one))),
        notes=tuple(sorted({*a.notes, *b.notes})),
        places={
            name: min(filter(None, (a.places.get(name), b.places.get(name))), key=lambda one: (one.path, one.line))
            for name in sorted({*a.places, *b.places})
        },
        replay=max(filter(None, (a.replay, b.replay)), key=lambda one: (one.recorded, repr(one)), default=None),
    )


def _layers(a: tuple[Layer, ...], b: tuple[Layer, ...]) -> tuple[Layer, ...]:
    found = {layer.name: layer for layer in a}
    for layer in b:
        found[layer.name] = found[layer.name] + layer if layer.name in found else layer
    return tuple(sorted(found.values(), key=lambda layer: (layer.order, layer.name)))


def _operators(a: tuple[Operator, ...], b: tuple[Operator, ...]) -> tuple[Operator, ...]:
    found: dict[tuple[object, ...], Operator] = {}
    for one in (*a, *b):
        key = (one.operator, one.layer, one.source, one.precision, one.trouble, one.phase)
        found[key] = max(one, found.get(key, one), key=lambda operator: (tellable(operator.amax), operator.lost))
    return tuple(sorted(found.values(), key=lambda one: (-one.amax, one.layer, one.operator, str(one.source))))


def _optimizers(a: tuple[OptimizerLog, ...], b: tuple[OptimizerLog, ...]) -> tuple[OptimizerLog, ...]:
    """Ranks have the same optimizers in the same order."""
    pairs = zip_longest(a, b)
    return tuple(
        max(filter(None, pair), key=lambda log: (log.attempted, log.taken, log.name, log.parameters, repr(log)))
        for pair in pairs
    )


def _events(a: tuple[ScalerEvent, ...], b: tuple[ScalerEvent, ...]) -> tuple[ScalerEvent, ...]:
    found: dict[int, ScalerEvent] = {}
    for event in (*a, *b):
        met = found.get(event.step, event)
        found[event.step] = min(event, met, key=lambda one: (not one.found_inf, one.scale, one.layer or ""))
    return tuple(found[step] for step in sorted(found))


def _losses(a: Profile, b: Profile) -> tuple[float, ...]:
    """The mean over ranks, step by step."""
    total = a.ranks + b.ranks
    return tuple(
        y if x is None else x if y is None else (x * a.ranks + y * b.ranks) / total if total else x
        for x, y in zip_longest(a.loss, b.loss)
    )


def _age(met: FirstNonfinite) -> tuple[int, int, str, str]:
    return (met.step, PHASES.index(met.phase) if met.phase in PHASES else len(PHASES), met.layer, repr(met))


def _title(profile: Profile) -> tuple[object, ...]:
    """What two ranks of one run agree on; the rest of the order is only there so that a merge has no sides."""
    return (profile.command, profile.script, profile.mode, profile.torch, repr(profile.device))
