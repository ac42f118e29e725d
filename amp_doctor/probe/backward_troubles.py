"""The operators whose backward loses or overflows a gradient, worst first: those in which it happens, by their inputs.

Judged under the largest loss scale at which nothing overflows: what is lost there no scale saves. Where there is none,
because something overflows under any, what is lost under a scale of 1 says nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.probe.graph_calls import name_of
from amp_doctor.probe.troubles import OVERFLOW, SELECTS, UNDERFLOW, Trouble, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.compare import Compared
    from amp_doctor.probe.replayed import Node, Replayed

# The share of a gradient that a backward may lose beyond what it was given without it, weighed by what that changes.
_LOST = 0.1
_WEIGHT = 4
# From this share of lost elements, or this relative error on, it is the forward pass that has gone wrong before.
_LOST_BEFORE = 0.02
_WRONG_BEFORE = 0.1
# Above it FP32's own gradient is nothing but rounding; and what is made of a gradient that is wrong already is no news.
_NOISE = 2.0
_WRONG_GIVEN = 0.3


def backward_troubles(replayed: Replayed) -> tuple[Trouble, ...]:
    """One per operator, layer and line."""
    found: dict[tuple[object, ...], Trouble] = {}
    known = {one.node: one for one in replayed.nodes}
    # The backward pass meets the last call first.
    for position, one in enumerate(reversed(replayed.nodes)):
        values = (one, *(known[i] for i in one.inputs if i in known))
        trouble = _judge(one, any(map(_damaged, values)))
        if trouble is not None:
            trouble = replace(trouble, rank=trouble.rank - 1e-6 * position)
            key = (*place(one), trouble.trouble)
            if key not in found or found[key].rank < trouble.rank:
                found[key] = trouble
    overflow = any(one.trouble == OVERFLOW for one in found.values())
    told = [one for one in found.values() if one.trouble == OVERFLOW or not overflow]
    return tuple(sorted(told, key=lambda one: -one.rank))


def _damaged(one: Node) -> bool:
    return one.compared.lost > _LOST_BEFORE or one.compared.error > _WRONG_BEFORE


def _judge(one: Node, damaged: bool) -> Trouble | None:
    """`damaged`: its arguments or its result have lost elements in the forward pass, which is told of that pass."""
    flow = one.flow
    if flow is None or not flow.made or one.refused or one.compared.broken:
        return None
    if any(made.broken for made in flow.made):
        if any(given.broken for given in flow.given):
            return None
        worst = max(flow.made, key=lambda made: (made.broken > 0, made.amax))
        return Trouble(one, OVERFLOW, 0.5 if damaged else 15.0, worst)
    if name_of(one.node) in SELECTS or any(given.error > _WRONG_GIVEN for given in flow.given):
        return None
    weigh = _weigher(flow.given)
    worst = max(flow.made, key=weigh)
    if weigh(worst) > _LOST and not damaged:
        return Trouble(one, UNDERFLOW, weigh(worst), worst)
    return None


def _weigher(given: list[Compared]) -> Callable[[Compared], float]:
    """A loss beside much larger gradients changes little; what was lost or wrong before is not this call's."""
    lost = max((one.lost for one in given), default=0.0)
    wrong = max((one.error for one in given), default=0.0)
    return lambda made: min(made.lost - lost, _WEIGHT * (made.error - wrong)) if made.error < _NOISE else 0.0
