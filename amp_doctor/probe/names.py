"""Modules and parameters -> names, without being handed a model.

A global hook is not told where a module lives. The outermost module of a forward pass is a root, and its
`named_modules` name the rest. There may be several roots (a GAN, a criterion); with more than one that has parameters
the name of the root's class leads the name of the layer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from amp_doctor.diagnosis.profile import Source
from amp_doctor.probe.traces import INSTALLED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from torch import Tensor

    from amp_doctor.probe.count import Tally
    from amp_doctor.probe.device_count import DeviceTally

# Class of a wrapper -> the attribute under which it keeps the model.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "_FabricModule": "_forward_module",
}
_INNER = frozenset(_WRAPPERS.values()) - {"module"}


@dataclass(eq=False, slots=True)
class Record:
    """One layer while the probe runs: where it is, and a tally per role; `observed` are those in reduced precision."""

    root: int
    path: str
    type: str
    order: int = -1
    source: Source | None = None
    tallies: dict[str, Tally | DeviceTally] = field(default_factory=dict)
    observed: dict[str, Tally | DeviceTally] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    # A function of the autograd graph has no gradient worth counting in a criterion: it starts from 1.
    is_loss: bool = False
    is_torch: bool = False
    # The layer that a parameter without one turned out to belong to.
    heir: Record | None = None


class Names:
    """Knows every module met in a forward pass and every parameter that one of them owns."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._roots: list[tuple[str, bool]] = []
        self._of_module: WeakKeyDictionary[nn.Module, Record] = WeakKeyDictionary()
        self._of_parameter = WeakIdKeyDictionary()
        self._next = 0

    def of(self, module: nn.Module) -> Record | None:
        """The record of a module that has been met."""
        return self._of_module.get(module)

    def modules(self) -> Iterator[tuple[nn.Module, Record]]:
        """Every module that is known and alive."""
        yield from list(self._of_module.items())

    def meet(self, root: nn.Module) -> None:
        """Name a root and everything below it; a root that contains an earlier one takes its names over."""
        while (inner := getattr(root, _WRAPPERS.get(type(root).__name__, ""), None)) is not None:
            self._learn(root, Record(len(self._roots), "", type(root).__name__))
            root = inner
        number = len(self._roots)
        self._roots.append((type(root).__name__, next(root.parameters(), None) is not None))
        for path, module in root.named_modules():
            clean = ".".join(part for part in path.split(".") if part not in _INNER)
            record = self._of_module.get(module)
            if record is None:
                self._learn(module, Record(number, clean, type(module).__name__))
            else:
                record.root, record.path = number, clean

    def meet_inside(self, module: nn.Module, parent: Record | None) -> Record:
        """A module that came into being after its root was named."""
        path = f"{parent.path}.({type(module).__name__})" if parent else ""
        return self._learn(module, Record(parent.root if parent else 0, path, type(module).__name__))

    def holder(self, parameter: Tensor) -> Record | None:
        """The record of the module that holds a parameter, if one is known."""
        record: Record | None = self._of_parameter.get(parameter)
        return record

    def owner(self, parameter: Tensor) -> Record:
        """The record of the module that holds a parameter; one of its own when no module that was called does."""
        record: Record | None = self._of_parameter.get(parameter)
        if record is None:
            shape = "x".join(map(str, parameter.shape)) or "scalar"
            record = Record(-1, f"parameter {sum(one.root < 0 for one in self.records)} ({shape})", "Parameter")
            self.records.append(record)
            self._of_parameter[parameter] = record
        return record

    def called(self, record: Record) -> None:
        """Note the order of the first call and the line it comes from."""
        record.order = self._next
        self._next += 1
        record.source = calling_line()

    def full(self, record: Record) -> str:
        """The name to show for a layer."""
        record = record.heir or record
        if record.root < 0 or not self._roots:
            return record.path
        # A root of which nothing was counted is no second one: averaged weights, or a teacher, that are only evaluated.
        counted = {one.root for one in self.records if one.tallies or one.observed or one is record}
        living = sorted(root for root in counted if root >= 0 and self._roots[root][1])
        if living == [record.root] and record.path:
            return record.path
        root, _ = self._roots[record.root]
        # The third Critic of a program is Critic#3.
        twins = [number for number in living if self._roots[number][0] == root]
        if record.root in twins and twins.index(record.root):
            root = f"{root}#{twins.index(record.root) + 1}"
        return f"{root}.{record.path}" if record.path else root

    def _learn(self, module: nn.Module, record: Record) -> Record:
        record.is_torch = type(module).__module__.startswith("torch.nn.")
        record.is_loss = record.type.endswith("Loss") or isinstance(module, nn.modules.loss._Loss)
        self._of_module[module] = record
        self.records.append(record)
        for parameter in module._parameters.values():
            if parameter is not None:
                earlier = self._of_parameter.get(parameter)
                if earlier is None:
                    self._of_parameter[parameter] = record
                elif earlier.root < 0:
                    self._adopt(earlier, record)
                    self._of_parameter[parameter] = record
        return record

    def _adopt(self, orphan: Record, record: Record) -> None:
        """A parameter that was counted before its module was met is that module's: the profile adds the two up."""
        orphan.heir = record


def own_line() -> Source | None:
    """The nearest line of the user's own code, which no package has installed, that is being executed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if not module.startswith(("torch.", "amp_doctor.")) and not path.startswith(INSTALLED):
            return Source(path, frame.f_lineno)
        frame = frame.f_back
    return None


def calling_line() -> Source | None:
    """The nearest line outside torch and this package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("torch.", "amp_doctor.", "lightning.", "pytorch_lightning.", "accelerate.")):
            return Source(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
