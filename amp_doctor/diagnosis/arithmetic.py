"""Half precision where float32 is needed, in weights, optimizers and buffers: AMP610, AMP611, AMP612, AMP616."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.precision import HALF
from amp_doctor.diagnosis.profile import UPDATE, WEIGHT
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import percent
from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Site

SWALLOWED = 0.5
# v times beta2 rounds back to v in bfloat16 when 1 - beta2 is below half a unit in the last place.
_NEVER_DECAYS = 2.0**-9
_STATISTICS = ("running_mean", "running_var")
_SHORT = {"float16": "FP16", "bfloat16": "BF16"}


def swallowed_share(site: Site, dtype: str, *, weights: str) -> float:
    """The share of the non-zero updates that leave a weight of `dtype` where it is; `weights` is what the weights are.

    Where the weights are half themselves the histogram counts only the moves that happened.
    """
    lost = site.swallowed.get(dtype, 0)
    total = site.histogram.nonzero + (lost if weights == dtype else 0)
    return lost / total if total else 0.0


@symptom("AMP610")
def update_swallowed(facts: Facts) -> Iterable[Draft]:
    """Most steps are too small to move weights that are half themselves."""
    rates = [log.lr for log in facts.profile.optimizers if log.lr is not None]
    if rates and not any(rates):
        return  # a warm-up that starts from 0
    for layer in facts.profile.layers:
        dtype = layer.sites[WEIGHT].dtype if WEIGHT in layer.sites else ""
        if dtype not in HALF or UPDATE not in layer.sites:
            continue
        share = swallowed_share(layer.sites[UPDATE], dtype, weights=dtype)
        if share > SWALLOWED:
            yield Draft(
                layer.name,
                f"{percent(share)} of the updates are too small to move a weight in {_SHORT[dtype]}: keep the weights "
                "in FP32 and use autocast",
                share,
            )


@symptom("AMP611")
def eps_is_zero(facts: Facts) -> Iterable[Draft]:
    """The guard against division by zero is itself zero."""
    for log in facts.profile.optimizers:
        if log.eps is not None and log.eps <= FP16.zero_threshold and "float16" in (log.state_dtypes or log.dtypes):
            yield Draft(
                None,
                f"{log.name}'s eps={log.eps:g} is 0 in its FP16 state: a gradient below 1.7e-4, whose square is 0 too, "
                "is divided by zero",
            )


@symptom("AMP612")
def half_statistics(facts: Facts) -> Iterable[Draft]:
    """BatchNorm's running statistics were cast with the model."""
    for layer in facts.profile.layers:
        half = [(name, layer.buffers[name]) for name in _STATISTICS if layer.buffers.get(name) in HALF]
        if half:
            names = " and ".join(name for name, _ in half)
            yield Draft(
                layer.name,
                f"{names} of this {layer.type or 'layer'} are kept in {_SHORT[half[0][1]]}: momentum times a small "
                "difference rounds away, and a variance beyond the range is infinite",
            )


@symptom("AMP616")
def second_moment_never_decays(facts: Facts) -> Iterable[Draft]:
    """BF16 has too few bits for a beta2 of 0.999."""
    for log in facts.profile.optimizers:
        if "bfloat16" in log.state_dtypes and len(log.betas) > 1 and 1 - log.betas[1] <= _NEVER_DECAYS:
            yield Draft(
                None,
                f"{log.name} keeps its second moment in BF16, where {log.betas[1]:g} times a number rounds back to the "
                "number: it grows and never decays",
            )
