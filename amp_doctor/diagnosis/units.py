"""Units that no longer learn: AMP613."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.gradients import is_loss
from amp_doctor.diagnosis.profile import ACTIVATION, ACTIVATION_GRAD
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import count, percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Layer

_RECTIFIERS = frozenset(("ReLU", "ReLU6", "Threshold", "SquaredReLU", "ReLUSquaredActivation"))
DEAD = 0.999
# A branch that starts at zero (LoRA, the last norm of a residual block) passes no gradient in its first steps.
STEPS = 3


@symptom("AMP613")
def dead_units(facts: Facts) -> Iterable[Draft]:
    """A rectifier that gives zeros; failing that, the layer nearest to the loss that only gets zero gradients."""
    rectifiers = list(_rectifiers(facts))
    yield from rectifiers
    if rectifiers or facts.use.truncated or facts.profile.steps.attempted < STEPS:
        return
    reached: list[Layer] = []
    silent: list[Layer] = []
    for layer in facts.profile.layers:
        site = layer.sites.get(ACTIVATION_GRAD)
        if site is not None and site.histogram.elements and not is_loss(layer):
            counts = site.histogram
            (silent if counts.zeros == counts.elements else reached).append(layer)
    if reached and silent:
        layer = max(silent, key=lambda one: one.order)
        others = f" (and {count(len(silent) - 1, 'more layer')})" if len(silent) > 1 else ""
        yield Draft(
            layer.name,
            f"every gradient that reaches this layer{others} is exactly zero: what comes after it is dead or "
            "multiplies by zero",
        )


def _rectifiers(facts: Facts) -> Iterable[Draft]:
    for layer in facts.profile.layers:
        if layer.type in _RECTIFIERS and ACTIVATION in layer.sites:
            counts = layer.sites[ACTIVATION].histogram
            share = counts.zeros / counts.elements if counts.elements else 0.0
            if share > DEAD:
                yield Draft(layer.name, f"{percent(share)} of the outputs of this {layer.type} are zero", share)
