"""The calls of a recorded graph: their names, how they are made again, and how long their results are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_doctor.probe.calls import generator_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

_TO_HALF = frozenset(("half", "bfloat16"))


class OutOfTime(Exception):
    """A replay took longer than it was given."""


def name_of(node: fx.Node) -> str:
    """The function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def gives_no_tensor(node: fx.Node) -> bool:
    """A generator, which each run has for itself, or the dtype of a tensor, which may be another in each."""
    return node.target is generator_at or (node.target is getattr and node.args[1:] == ("dtype",))


def invoke(node: fx.Node, args: Any, kwargs: Any, *, wide: bool = False) -> Any:
    """Make the call; with `wide`, a method that makes tensors half makes them FP32."""
    if node.op == "call_method":
        name = "float" if wide and node.target in _TO_HALF else str(node.target)
        return getattr(args[0], name)(*args[1:], **kwargs)
    target: Callable[..., Any] = node.target  # type: ignore[assignment]
    return target(*args, **kwargs)


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node -> the nodes whose results nobody reads after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for one in node.all_input_nodes:
            last[one] = node
    uses: dict[fx.Node, list[fx.Node]] = {}
    for one, node in last.items():
        uses.setdefault(node, []).append(one)
    return uses
