"""A replayed step -> the operators at which a precision goes wrong, worst first.

An operator is blamed for what arises in it, not for what it was handed: an infinity from finite inputs, elements lost
that its inputs still had, an error far larger than theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import torch

from amp_doctor.diagnosis.facts import INPUT
from amp_doctor.diagnosis.profile import Operator
from amp_doctor.numerics.formats import BF16, FP16
from amp_doctor.probe.accumulation import ADDS, REDUCES, grows
from amp_doctor.probe.calls import apply_function
from amp_doctor.probe.dtypes import LOW, dtype_name
from amp_doctor.probe.graph_calls import name_of
from amp_doctor.probe.half_calls import beyond

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from amp_doctor.numerics.formats import Format
    from amp_doctor.probe.compare import Compared
    from amp_doctor.probe.replayed import Node, Replayed

OVERFLOW, UNDERFLOW, PRECISION, ACCUMULATION = "overflow", "underflow", "precision", "accumulation"
# Infinities where FP32 has none.
OVERFLOWS = (OVERFLOW, ACCUMULATION)
# Infinities that hide what they are meant to hide; and whole numbers, one after the other, that have become the same.
MASK, COLLAPSE = "mask", "collapse"
# What makes a step wrong only where its loss or its gradients say so.
BY_OUTCOME = (PRECISION, MASK, COLLAPSE)
# No trouble of its own: it stays in FP32 for the sake of another.
BESIDE = "beside"
BANNED, UNSUPPORTED, MIXED = "banned", "unsupported", "mixed"
# A share of elements that an operator may lose, and how far above its inputs' its error must be to be its own.
_LOST = 0.02
_WEIGHT = 4
_JUMP = 4.0
_ABSORBED = 0.005
# Below this share of what it was computed from, FP32's own result is nothing but rounding.
_NOISE = 2.0**-20
# Relative error of one result, in units of the format's eps: 4 % in float16, 31 % in bfloat16.
_ERROR = 40.0
# Shares of what is added that a sum may swallow: one call, or a running sum over the elements of a tensor.
_SWALLOWED = 0.9
_SWALLOWED_OF_MANY = 0.05
# They hand on what they are given: what they lose or have wrong comes from before, or from other indices.
_MOVES = frozenset(
    "getitem __getitem__ gather index_select take take_along_dim select narrow expand expand_as view reshape permute "
    "transpose unbind chunk split clone contiguous cat stack index_copy scatter float double".split()
)
_INVERSES = frozenset("div div_ true_divide __rdiv__ __rtruediv__ reciprocal rsqrt log log2 log10 pow".split())
# What they return are arguments, or zero where a comparison says so: a zero more is another outcome, and nothing lost.
SELECTS = frozenset(
    "where maximum minimum fmax fmin max min amax amin relu relu_ relu6 leaky_relu threshold hardtanh clamp clamp_ "
    "clamp_min clamp_max clip abs max_pool1d max_pool2d max_pool3d adaptive_max_pool2d masked_fill masked_fill_ sort "
    "topk gather dropout".split()
)
# A sum or a difference of two numbers of a format never underflows: where it is zero all the same, they were equal.
_SUMS = frozenset("add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ rsub".split())
_ADDS_EPS = frozenset("add add_ __add__ __radd__ __iadd__ clamp clamp_min clamp_ clip maximum sub rsub".split())


@dataclass(frozen=True, slots=True)
class Trouble:
    """One call that goes wrong; `rank` orders, larger first: overflow and refusals before losses.

    `gradient` is the one that its backward spoils, where it is the backward that goes wrong.
    """

    node: Node
    trouble: str
    rank: float
    gradient: Compared | None = None


def troubles(replayed: Replayed) -> tuple[Trouble, ...]:
    """Worst first, one per operator, layer and line."""
    found: dict[tuple[Any, ...], Trouble] = {}
    known = {one.node: one for one in replayed.nodes}
    # What comes after an infinity is computed from a mended value, whose error is not its own.
    mended: set[fx.Node] = set()
    masks: dict[fx.Node, frozenset[tuple[Any, ...]]] = {}
    for position, one in enumerate(replayed.nodes):
        trouble = _judge(one, known, replayed)
        hidden = frozenset[tuple[Any, ...]]().union(*(masks.get(i, ()) for i in one.inputs))
        if not mended.isdisjoint(one.inputs) or one.compared.broken or one.refused:
            if trouble is not None and _handed_on(trouble, mended, one):
                trouble = None
            mended.add(one.node)
        if trouble is not None:
            trouble = replace(trouble, rank=trouble.rank - 1e-6 * position)
            key = (*place(one), trouble.trouble)
            if key not in found or found[key].rank < trouble.rank:
                found[key] = trouble
            if trouble.trouble == MASK:
                hidden |= {key}
        if one.compared.nan:
            # What reads a mask has made NaN of it, as of a row in which nothing is left.
            for key in hidden & found.keys():
                found[key] = replace(found[key], trouble=OVERFLOW, rank=found[key].rank + 15)
        masks[one.node] = hidden if one.masks else frozenset()
    return tuple(sorted(found.values(), key=lambda one: -one.rank))


def operators(replayed: Replayed, found: Iterable[Trouble]) -> tuple[Operator, ...]:
    """As a profile keeps them."""
    return tuple(_operator(one, replayed) for one in found)


def _judge(one: Node, known: Mapping[fx.Node, Node], replayed: Replayed) -> Trouble | None:
    name, form = name_of(one.node), _format(one, replayed)
    seen = one.compared
    if one.refused:
        banned = name == "binary_cross_entropy" and replayed.precision.autocast is not None
        return Trouble(one, BANNED if banned else MIXED if one.mixed else UNSUPPORTED, 30.0)
    if name == "getitem":
        inputs = [known[i] for parent in one.inputs for i in parent.all_input_nodes if i in known]
    else:
        inputs = [known[i] for i in one.inputs if i in known]
    if one.masks:
        return Trouble(one, MASK, 5.0)
    if seen.broken or one.cast:
        if name in _INVERSES and any(i.compared.lost for i in inputs):
            return Trouble(one, OVERFLOW, 0.5)  # a divisor that has become zero: the fault is there
        if grows(name, seen.amax, max((i.compared.amax for i in inputs), default=inf)):
            return Trouble(one, ACCUMULATION, 20.0)
        return Trouble(one, OVERFLOW, 20.0)
    if name in _MOVES or one.rerouted:
        return None
    stuck = _running_sum(one) or (name not in ADDS and one.swallowed > _SWALLOWED_OF_MANY)
    if one.collapsed and not stuck and not any(i.collapsed for i in inputs):
        return Trouble(one, COLLAPSE, 2.0)
    if one.dtype not in LOW:
        return _amplified(one, inputs, form)
    if name in _ADDS_EPS and any(0 < abs(value) <= form.zero_threshold for value in _constants(one.node)):
        return Trouble(one, UNDERFLOW, 1.0 + seen.lost)
    lost = seen.lost - max((i.compared.lost for i in inputs), default=0.0)
    wrong = seen.error - max((i.compared.error for i in inputs), default=0.0)
    # What is lost beside much larger values changes little, if nobody divides by it; where the arguments are wrong
    # already, it may be that they have changed their sign.
    harmful = _WEIGHT * wrong > _LOST or _divides(one, known)
    if lost > _LOST and harmful and name not in SELECTS | _SUMS and not _absorbed(one, known):
        return Trouble(one, UNDERFLOW, min(lost, 20 * seen.error) + lost / 10)
    if stuck:
        return Trouble(one, ACCUMULATION, 0.4)
    trouble = _amplified(one, inputs, form)
    return replace(trouble, trouble=ACCUMULATION) if trouble is not None and name in REDUCES else trouble


def _divides(one: Node, known: Mapping[fx.Node, Node]) -> bool:
    """Whether a call that has overflowed divides by the result, or takes its logarithm."""
    users = (known[user] for user in one.node.users if user in known)
    return any(user.compared.broken and name_of(user.node) in _INVERSES for user in users)


def _absorbed(one: Node, known: Mapping[fx.Node, Node]) -> bool:
    """Whether all that is computed from the result comes out well all the same: it was added to larger values."""
    users = [known[user].compared for user in one.node.users if user in known]
    return bool(users) and not any(user.broken or user.lost > _LOST or user.error > _ABSORBED for user in users)


def _running_sum(one: Node) -> bool:
    """Whether the script itself keeps a sum in half: a single number, which stops growing sooner or later, or values
    that have stopped. A branch too small for what it is added to once is none: it may grow."""
    node = one.node
    if name_of(node) not in ADDS or node.meta.get("dtype") not in LOW:
        return False
    kept = [i for i in one.inputs if i.meta.get("dtype") in LOW]
    if not node.meta.get("shape"):
        return any(not i.meta.get("shape") for i in kept)
    again = any(i.op == "placeholder" or _line(i) == _line(node) for i in kept)
    return again and one.swallowed > _SWALLOWED


def _line(node: fx.Node) -> tuple[str, Any]:
    return name_of(node), node.meta.get("source")


def _handed_on(trouble: Trouble, mended: set[fx.Node], one: Node) -> bool:
    """Whether it may come from an infinity further up; a matrix product that overflows anew is told all the same."""
    return trouble.trouble == PRECISION or (
        trouble.trouble in (*OVERFLOWS, MASK) and not one.flops and not mended.isdisjoint(one.inputs)
    )


def _amplified(one: Node, inputs: list[Node], form: Format) -> Trouble | None:
    error, given = one.compared.error, max((i.compared.error for i in inputs), default=0.0)
    if one.compared.amax < _NOISE * max((i.compared.amax for i in inputs), default=0.0):
        return None
    if isfinite(error) and error > _ERROR * form.eps and error > _JUMP * max(given, form.eps / 2):
        return Trouble(one, PRECISION, min(error, 1.0))
    return None


def _format(one: Node, replayed: Replayed) -> Format:
    return BF16 if torch.bfloat16 in (one.dtype, replayed.precision.low) else FP16


def _constants(node: fx.Node) -> list[float]:
    return [
        float(one)
        for one in (*node.args, *node.kwargs.values())
        if isinstance(one, (int, float)) and not isinstance(one, bool)
    ]


def place(one: Node) -> tuple[Any, ...]:
    """Operator, layer and line."""
    return name_of(one.node), one.node.meta.get("layer", ""), one.node.meta.get("source")


def _spoken(node: fx.Node, name: str) -> str:
    """The name that a reader knows: of an `autograd.Function` that of its class, of `__add__` add."""
    if node.target is apply_function and node.graph.owning_module is not None:
        held = getattr(node.graph.owning_module, str(getattr(node.args[0], "target", "")), None)
        return getattr(held, "__name__", name)
    return name.strip("_") if name.startswith("__") else name


def _operator(trouble: Trouble, replayed: Replayed) -> Operator:
    one = trouble.node
    name, layer, source = place(one)
    backward = trouble.gradient is not None
    seen, dtype = trouble.gradient or one.compared, one.dtype or one.node.meta.get("dtype")
    name = _spoken(one.node, name)
    return Operator(
        name + INPUT if one.cast and not backward and seen.amax < FP16.overflow_threshold else name,
        layer,
        source,
        replayed.precision.name,
        trouble.trouble,
        dtype_name(dtype) if dtype is not None else "",
        seen.amax if backward else max(seen.amax, one.cast, beyond(_constants(one.node)) if one.refused else 0.0),
        one.collapsed if trouble.trouble == COLLAPSE else seen.lost,
        seen.error if isfinite(seen.error) else 0.0,
        one.flops,
        one.casts,
        "backward" if backward else "forward",
    )
