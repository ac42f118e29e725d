"""A recorded step: a torch.fx.GraphModule, what it is given, and what is known of it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

if TYPE_CHECKING:
    from torch import Tensor

    from amp_doctor.diagnosis.profile import Source


class StepModule(fx.GraphModule):
    """A GraphModule that is saved node by node, `meta` included.

    fx saves the printed code and traces it again, which turns random tensors and the switch of autograd into constants.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        number = {node: position for position, node in enumerate(self.graph.nodes)}

        def saved(value: Any) -> Any:
            return fx.node.map_arg(value, lambda one: _Saved(number[one]))  # type: ignore[arg-type,return-value]

        nodes = [
            (
                node.op,
                _named(node.target),
                saved(node.args),
                saved(node.kwargs),
                node.name,
                dict(node.meta),
            )
            for node in self.graph.nodes
        ]
        held = {node.target: getattr(self, node.target) for node in self.graph.nodes if node.op == "get_attr"}
        return _restore, (nodes, held)


@dataclass(frozen=True, slots=True)
class _Saved:
    number: int


@dataclass(frozen=True, slots=True)
class _Named:
    module: str
    name: str

    def found(self) -> Any:
        return getattr(import_module(self.module), self.name)


def _named(target: Any) -> Any:
    """A function by its name; some of torch.nn.functional are closures, which pickle refuses."""
    name = getattr(target, "__name__", "")
    for module in (getattr(target, "__module__", None) or "torch", "torch", "torch.nn.functional"):
        if callable(target) and getattr(sys.modules.get(module), name, None) is target:
            return _Named(module, name)
    return target


def _restore(nodes: list[tuple[Any, ...]], held: dict[str, Any]) -> StepModule:
    graph = fx.Graph()
    made: list[fx.Node] = []

    def back(value: Any) -> Any:
        if isinstance(value, _Saved):
            return made[value.number]
        if isinstance(value, (tuple, list)):
            return type(value)(back(one) for one in value)
        if isinstance(value, dict):
            return {key: back(one) for key, one in value.items()}
        if isinstance(value, slice):
            return slice(back(value.start), back(value.stop), back(value.step))
        return value

    for op, target, args, kwargs, name, meta in nodes:
        called = target.found() if isinstance(target, _Named) else target
        node = graph.create_node(op, called, back(args), back(kwargs), name)
        node.meta.update(meta)
        made.append(node)
    return StepModule(held, graph)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that the step is given: `name` is that of its placeholder, `path` of the parameter or buffer, or empty.

    `value` is as it was when it was first used; `gradients` are fingerprints, one per backward pass that reached it.
    """

    name: str
    path: str
    value: Tensor
    requires_grad: bool
    source: Source | None = None
    gradients: tuple[int | None, ...] = ()

    def fresh(self) -> Tensor:
        """A copy that may be changed."""
        from amp_doctor.probe.tape import copy_of

        return copy_of(self.value.detach()).requires_grad_(self.requires_grad)


@dataclass(frozen=True, slots=True)
class Recording:
    """One step. `inputs` are in the order of the placeholders; the graph returns the losses of its backward passes.

    Each node's `meta` holds `layer`, `module_type`, `source`, `dtype`, `shape`, `grad`, `bits` (the fingerprint of its
    result, None for views) and, where random numbers are drawn, `rng` (the generator's state before).
    """

    graph_module: fx.GraphModule
    inputs: tuple[Leaf, ...]
    losses: tuple[str, ...]
    notes: tuple[str, ...] = ()
    exact: bool = True

    def fresh_inputs(self) -> list[Tensor]:
        """What to hand to the graph, or to `torch.fx.Interpreter.run`; a run may change them."""
        return [leaf.fresh() for leaf in self.inputs]

    def save(self, path: str) -> None:
        """Write it with torch.save."""
        torch.save(self, path)
