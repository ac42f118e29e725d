"""A tape -> torch.fx.Graph: what leads to a backward pass, in the order in which it ran."""

from __future__ import annotations

import operator
import re
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

from amp_doctor.probe.accumulation import ADDS, MANY, REDUCES
from amp_doctor.probe.calls import generator_at
from amp_doctor.probe.dtypes import LOW
from amp_doctor.probe.recorded import Leaf, Recording, StepModule
from amp_doctor.probe.tape import DTYPE, FUNCTION, ITEM, LEAF, Drawn, Entry, Opaque, Ref, Tape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.probe.names import Names

# Passes that drop dead code leave these where they are.
fx.node.has_side_effect(torch.random.set_rng_state)
fx.node.has_side_effect(_exit_autocast)


def graph_of(tape: Tape, names: Names) -> Recording:
    """The graph of a tape; what no backward pass depends on is left out, all of it when there was none."""
    kept = sorted(_needed(tape.entries))
    writer = _Writer(tape, names)
    for number in kept:
        if tape.entries[number].kind == LEAF:
            writer.leaf(number)
    for number in kept:
        if tape.entries[number].kind != LEAF:
            writer.entry(number)
    return writer.done()


class _Writer:
    def __init__(self, tape: Tape, names: Names) -> None:
        self._tape, self._names = tape, names
        self._graph = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._held: dict[str, Any] = {}
        self._inputs: list[Leaf] = []
        self._taken: set[str] = set()
        self._losses: list[fx.Node] = []
        self._grad = True
        self._rng: torch.Tensor | None = None
        self._autocast: tuple[fx.Node, torch.dtype] | None = None
        self._regions = any(entry.inside for entry in tape.entries)

    def leaf(self, number: int) -> None:
        entry = self._tape.entries[number]
        name = wanted = _identifier(entry.target or "input")
        while name in self._taken:
            name = f"{wanted}_{len(self._taken)}"
        self._taken.add(name)
        node = self._graph.placeholder(name)
        assert entry.value is not None
        self._inputs.append(
            Leaf(node.name, entry.target, entry.value, entry.requires_grad, entry.source, tuple(entry.gradients))
        )
        node.meta.update(layer="", source=entry.source, dtype=entry.dtype, shape=entry.shape, path=entry.target)
        self._site(node, entry)
        self._nodes[number] = node

    def entry(self, number: int) -> None:
        entry, graph = self._tape.entries[number], self._graph
        self._switch(entry)
        args, kwargs = self._filled(entry.args), self._filled(entry.kwargs)
        if entry.kind == ITEM:
            node = graph.call_function(operator.getitem, (*args, entry.target))
        elif entry.kind == DTYPE:
            node = graph.call_function(getattr, (*args, entry.target))
        elif entry.kind == FUNCTION:
            node = graph.call_function(entry.target, args, kwargs)
        else:
            node = graph.call_method(entry.target, args, kwargs)
        record = self._names.of(entry.module) if entry.module is not None else None
        layer = self._names.full(record) if record is not None else ""
        node.meta.update(
            layer=layer,
            module_type=type(entry.module).__name__ if entry.module is not None else "",
            source=entry.source,
            dtype=entry.dtype,
            shape=entry.shape,
            grad=entry.grad,
            bits=entry.bits,
            backward=entry.backward,
            mutates=bool(entry.mutates),
            # Off the script's own autocast, where it has some.
            outside=self._regions and not entry.inside,
        )
        self._site(node, entry)
        if entry.rng is not None:
            node.meta["rng"] = entry.rng[0]
        if entry.module is not None:
            node.meta["nn_module_stack"] = {layer: (layer, type(entry.module))}
        if entry.source is not None:
            node.meta["stack_trace"] = f'File "{entry.source.path}", line {entry.source.line}'
        if entry.backward:
            self._losses += [one for one in _roots(args, kwargs) if one not in self._losses]
        self._nodes[number] = node

    def done(self) -> Recording:
        if self._autocast is not None:
            self._graph.call_function(_exit_autocast, (self._autocast[0],))
        if not self._grad:
            self._graph.call_function(torch._C._set_grad_enabled, (True,))
        self._graph.output(tuple(self._losses))
        return Recording(
            StepModule(self._held, self._graph),
            tuple(self._inputs),
            tuple(node.name for node in self._losses),
            tuple(dict.fromkeys(self._tape.notes)),
            not self._tape.by_reference,
        )

    def _site(self, node: fx.Node, entry: Entry) -> None:
        if entry.site is not None:
            node.meta["site"] = self._names.full(entry.site)

    def _switch(self, entry: Entry) -> None:
        """The modes that the call ran under, where they change."""
        graph = self._graph
        if entry.kind in (ITEM, DTYPE):
            return
        if entry.grad != self._grad:
            self._grad = entry.grad
            graph.call_function(torch._C._set_grad_enabled, (entry.grad,))
        if entry.autocast != (self._autocast[1] if self._autocast else None):
            if self._autocast is not None:
                graph.call_function(_exit_autocast, (self._autocast[0],))
                self._autocast = None
            if entry.autocast is not None:
                self._autocast = (
                    graph.call_function(_enter_autocast, ("cpu", entry.autocast, True, True)),
                    entry.autocast,
                )
        if entry.rng is not None:
            if entry.rng[0] is not self._rng:
                graph.call_function(torch.random.set_rng_state, (self._hold("rng", entry.rng[0]),))
            self._rng = entry.rng[1]

    def _hold(self, name: str, value: Any) -> fx.Node:
        for known, held in self._held.items():
            if held is value:
                return self._graph.get_attr(known)
        name = f"{name}_{len(self._held)}"
        self._held[name] = value
        return self._graph.get_attr(name)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self._nodes[value.number]
        if isinstance(value, Opaque):
            return self._hold("object", value.value)
        if isinstance(value, Drawn):
            return self._graph.call_function(generator_at, (self._hold("generator", value.state), value.device))
        if isinstance(value, (tuple, list)):
            return type(value)(self._filled(one) for one in value)
        if isinstance(value, dict):
            return {key: self._filled(one) for key, one in value.items()}
        if isinstance(value, slice):
            return slice(self._filled(value.start), self._filled(value.stop), self._filled(value.step))
        return value


def _needed(entries: list[Entry]) -> set[int]:
    """The backward passes, what leads to them, what changes memory that they read, and sums kept in half."""
    needed: set[int] = set()
    waiting = [number for number, entry in enumerate(entries) if entry.backward]
    last = max(waiting, default=-1)
    if waiting:
        waiting += [number for number, entry in enumerate(entries) if _adds_up_in_half(entry, entries)]
    changes = [n for n, entry in enumerate(entries[: last + 1]) if entry.mutates]
    while waiting:
        while waiting:
            number = waiting.pop()
            if number not in needed:
                needed.add(number)
                waiting += _refs((entries[number].args, entries[number].kwargs))
        read = {entries[number].storage for number in needed if entries[number].storage}
        waiting = [n for n in changes if n not in needed and not read.isdisjoint(entries[n].mutates)]
    return needed


def _adds_up_in_half(entry: Entry, entries: list[Entry]) -> bool:
    """A statistic of a script, kept from step to step or over many elements: no loss depends on it."""
    name = entry.target if isinstance(entry.target, str) else getattr(entry.target, "__name__", "")
    if entry.dtype not in LOW or name not in ADDS | REDUCES:
        return False
    halves = [entries[one] for one in _refs(entry.args) if entries[one].dtype in LOW]
    if name in ADDS:
        return any(one.kind == LEAF for one in halves)
    return any(prod(one.shape or ()) >= MANY for one in halves)


def _refs(value: Any) -> Iterator[int]:
    if isinstance(value, Ref):
        yield value.number
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _refs(one)
    elif isinstance(value, dict):
        yield from _refs(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _refs((value.start, value.stop, value.step))


def _roots(args: Any, kwargs: dict[str, Any]) -> list[fx.Node]:
    first = args[0] if args else kwargs.get("tensors")
    return [one for one in (first if isinstance(first, (tuple, list)) else [first]) if isinstance(one, fx.Node)]


def _identifier(path: str) -> str:
    name = re.sub(r"\W", "_", path)
    return name if name[:1].isalpha() else f"p_{name}"
