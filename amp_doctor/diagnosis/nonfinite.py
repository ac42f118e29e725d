"""NaN, infinities, and a scaler that meets them: AMP607, AMP608, AMP609."""

from __future__ import annotations

from collections import Counter
from math import isfinite, isnan
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import INPUT, OVERFLOWS
from amp_doctor.diagnosis.operators import O0_FLOAT16, O1_BFLOAT16, O1_FLOAT16
from amp_doctor.diagnosis.registry import Draft, symptom
from amp_doctor.diagnosis.words import count, scale_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.profile import Operator

_PHASES = {
    "weight": "in the weights of this layer",
    "forward": "in the output of this layer",
    "loss": "in the loss",
    "backward": "in the gradients of this layer",
    "optimizer": "in the weights of this layer after the optimizer's step",
}
# Settings that no script has, which tell what its own half tensors come to.
O2_FLOAT16, O3_FLOAT16 = "O2/float16", "O3/float16"
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
        when = f"in step {met.step}" if met.step else "before the first step"
        place, source, found = _PHASES.get(met.phase, f"in phase {met.phase}"), met.source, origin(facts)
        if met.operator:
            place = f"in the result of {met.operator} in this layer"
        elif found is not None and met.phase == "forward":
            place, source = f"in the result of {found.operator.removesuffix(INPUT)} in this layer", found.source
        elif found is not None:
            place, source = f"{place}; in half {found.operator.removesuffix(INPUT)} overflows before it", found.source
        yield Draft(met.layer or None, f"the first {value} appears {when}, {place}", source=source)
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


def origin(facts: Facts) -> Operator | None:
    """The operator that a NaN or an infinity of the forward pass came from, where a replay shows one that overflows.

    Of a loss written in no layer it is one in no layer, too; half tensors that autocast has left there the replay has
    with all weights in half only.
    """
    met = facts.profile.first_nonfinite
    if met is None or met.operator or met.phase not in ("forward", "loss"):
        return None
    layer, precisions = met.layer if met.phase == "forward" else "", ["", O0_FLOAT16]
    if facts.use.float16:
        precisions += [O1_FLOAT16, *((O2_FLOAT16, O3_FLOAT16) if met.phase == "loss" else ())]
    if facts.use.bfloat16:
        precisions.append(O1_BFLOAT16)
    met_there = [
        one
        for one in facts.profile.operators
        if one.trouble in OVERFLOWS and one.phase == "forward" and one.layer == layer and one.source
    ]
    # By the precision first: what the script does itself is nearest.
    return next((one for precision in precisions for one in met_there if one.precision == precision), None)


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
