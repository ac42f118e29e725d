"""Drafts that only follow from infinities which another finding names: whoever mends the cause needs none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amp_doctor.diagnosis.facts import Facts
    from amp_doctor.diagnosis.registry import Draft

_INFINITIES = ("AMP605", "AMP607")


def without_consequences(found: Mapping[str, Sequence[Draft]], facts: Facts) -> dict[str, list[Draft]]:
    """Code -> drafts, less those that infinities seen in this run have brought about.

    What would be infinite in a precision that the script does not use has brought about nothing.
    """
    causes = [draft for code in _INFINITIES for draft in found.get(code, ())]
    if not facts.use.float16 and facts.profile.first_nonfinite is None:
        causes = []
    endless = bool(found.get("AMP608"))
    # A scale that infinities have brought down, and gradients counted beside a NaN, say nothing of what gets lost.
    low = endless or (bool(causes) and _came_down(facts))
    beside = _not_finite(facts) if found.get("AMP607") else set()
    gone: dict[str, Callable[[Draft], bool]] = {
        "AMP601": lambda draft: low or draft.layer in beside,
        "AMP609": lambda _: low,
        "AMP613": lambda draft: any(_upstream(cause, draft, facts) for cause in causes),
    }
    return {code: [one for one in drafts if not (code in gone and gone[code](one))] for code, drafts in found.items()}


def _not_finite(facts: Facts) -> set[str | None]:
    """The layers among whose gradients a NaN or an infinity was counted."""
    return {one.layer.name for one in facts.gradients if one.counts.nan or one.counts.inf}


def _came_down(facts: Facts) -> bool:
    events = facts.profile.scaler
    return bool(events) and events[-1].scale < events[0].scale and any(one.found_inf for one in events)


def _upstream(cause: Draft, draft: Draft, facts: Facts) -> bool:
    """Whether a layer computes from what another one, or code outside of all, has made infinite."""
    order = {layer.name: layer.order for layer in facts.profile.layers}
    if cause.layer not in order or draft.layer not in order:
        return True
    return order[cause.layer] <= order[draft.layer]
