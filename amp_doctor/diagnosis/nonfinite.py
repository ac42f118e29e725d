"""NaN, infinities, and a scaler that meets them: AMP607, AMP608, AMP609."""

from __future__ import annotations

from collections import Counter
from math import isfinite, isnan
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import count, scale_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.facts import Facts

_PHASES = {
    "weight": "in the weights of this layer",
    "forward": "in the output of this layer",
    "loss": "in the loss",
    "backward": "in the gradients of this layer",
    "optimizer": "in the weights of this layer after the optimizer's step",
}
_VALUES = {"nan": "NaN", "inf": "infinity", "-inf": "infinity"}
# Fewer attempts say nothing: a scaler that starts at 65536 needs up to 16 skips to come down to 1.
ATTEMPTS = 10
LAST = 8


@symptom("AMP607")
def first_nonfinite(facts: Facts) -> Iterable[Draft]:
    """Where it begins; everything later follows from it."""
    met = facts.profile.first_nonfinite
    if met is not None:
        value = _VALUES.get(met.value, met.value)
        where = f"the result of {met.operator}" if met.operator else None
        place = f"in {where} in this layer" if where else _PHASES.get(met.phase, f"in phase {met.phase}")
        when = f"in step {met.step}" if met.step else "before the first step"
        yield Draft(met.layer or None, f"the first {value} appears {when}, {place}", source=met.source)
        return
    # Of a loss that was computed from scaled gradients the scaler cures infinities, too.
    passing = _passing_skips(facts)
    for step, loss in enumerate(facts.profile.loss, 1):
        if not isfinite(loss) and step not in passing:
            value = "NaN" if isnan(loss) else "infinite"
            yield Draft(None, f"the loss is {value} in step {step}; no layer was seen to start it")
            return


@symptom("AMP608")
def endless_skipping(facts: Facts) -> Iterable[Draft]:
    """Skips that do not end, unlike those by which a scaler finds its scale."""
    events = facts.profile.scaler
    skipped = [event for event in events if event.found_inf]
    if not skipped:
        return
    warm_up = bool(_passing_skips(facts))
    ending = len(events) >= LAST and all(event.found_inf for event in events[-LAST:])
    if ending or (len(events) >= ATTEMPTS and 2 * len(skipped) >= len(events) and not warm_up):
        blamed = Counter(event.layer for event in skipped if event.layer)
        layer = blamed.most_common(1)[0][0] if blamed else None
        last = scale_words(events[-1].scale)
        yield Draft(
            layer,
            f"the scaler skipped {len(skipped)} of {count(len(events), 'step')}, "
            + (
                f"the last {_trailing(facts)} in a row, and came down to {last}"
                if ending
                else f"at scales down to {last}"
            )
            + ("; the infinities come from this layer" if layer else "")
            + ": a scale does not cure what is infinite or NaN without one",
        )


@symptom("AMP609")
def dead_scale(facts: Facts) -> Iterable[Draft]:
    """torch's scaler has no floor: sixty infinities in a row leave 2.8e-14."""
    if facts.profile.scaler and facts.profile.scaler[-1].scale < 1:
        last = scale_words(facts.profile.scaler[-1].scale)
        yield Draft(None, f"the loss scale is {last}: below 1 it pushes gradients towards zero instead of away from it")


def _passing_skips(facts: Facts) -> set[int]:
    """The steps of the one run of skips by which a scaler has found its scale; none where there was another."""
    events = facts.profile.scaler
    places = [number for number, event in enumerate(events) if event.found_inf]
    if not places or places != list(range(places[0], places[-1] + 1)) or places[-1] == len(events) - 1:
        return set()
    return {events[number].step for number in places}


def _trailing(facts: Facts) -> int:
    return next(
        (number for number, event in enumerate(reversed(facts.profile.scaler)) if not event.found_inf),
        len(facts.profile.scaler),
    )
