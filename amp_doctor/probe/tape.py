"""What a recorder has seen, call by call, before it becomes a graph; cheap, for it grows inside the training step."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from amp_doctor.probe.asked_dtypes import AskedDtypes
from amp_doctor.probe.fingerprint import fingerprint
from amp_doctor.probe.renamed import Renamed, renamed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from amp_doctor.diagnosis.profile import Source
    from amp_doctor.probe.names import Record

LEAF, FUNCTION, METHOD, ITEM, DTYPE = "leaf", "function", "method", "item", "dtype"
# Their results hold whatever memory held before.
UNINITIALISED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
# Arguments that fx prints as they are.
_PLAIN = (str, int, float, bool, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of an earlier entry, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that fx cannot print: it becomes an attribute of the graph's module."""

    value: Any


@dataclass(frozen=True, slots=True)
class Drawn:
    """A `torch.Generator` as it was when a call was given it."""

    state: Tensor
    device: torch.device


@dataclass(eq=False, slots=True)
class Entry:
    """One call, or one leaf (a tensor that the step was given); `rng` holds the generator's state before and after.

    `site` is the layer that returned it, or whose parameter it is; `inside` says that the script has autocast on.
    """

    kind: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    source: Source | None = None
    grad: bool = True
    rng: tuple[Tensor, Tensor] | None = None
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] | None = None
    bits: int | None = None
    storage: int = 0
    mutates: tuple[int, ...] = ()
    value: Tensor | None = None
    requires_grad: bool = False
    gradients: list[int | None] = field(default_factory=list)
    backward: bool = False
    autocast: torch.dtype | None = None
    inside: bool = False
    site: Record | None = None


class Tape:
    """The entries of one step, and which tensors of the program they stand for.

    `limit` is the number of bytes of leaves that are copied; beyond it they are kept by reference, with a note.
    """

    def __init__(self, limit: int) -> None:
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        self.bytes = 0
        self.by_reference = False
        self.dtypes = AskedDtypes()
        self._limit = limit
        self._known: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        self._explained: dict[int, int] = {}
        self._once: dict[int, Ref] = {}
        self._renamed: dict[int, Renamed[Ref]] = {}
        self._handles: list[Any] = []
        self._hooked: dict[int, Entry] = {}
        self._parameters: dict[int, tuple[weakref.ref[Tensor], str, Record | None]] = {}
        self._rng = torch.default_generator.get_state()
        # What was made before the next node was made before the step, like a hidden state that is carried on.
        self._began = torch._C._autograd._get_sequence_nr()

    # --- leaves -------------------------------------------------------------------------------------------------

    def name(self, tensor: Tensor, path: str, owner: Record | None = None) -> None:
        """A parameter or buffer, by its name in the model, and the layer it belongs to."""
        self._parameters[id(tensor)] = (weakref.ref(tensor), path, owner)

    def returned(self, tensor: Tensor, layer: Record) -> None:
        """A module has given this tensor, whose gradient is counted."""
        met = self._known.get(id(tensor))
        if met is not None and met[0]() is tensor:
            self.entries[met[1]].site = layer

    def ref(self, tensor: Tensor, source: Source | None = None) -> Ref:
        """The entry that a tensor comes from; a tensor nobody has seen made is a leaf."""
        met = self._known.get(id(tensor))
        once = self._once.pop(id(tensor), None)
        if met is not None and met[0]() is tensor:
            version = _version(tensor)
            if once is not None and met[2] == version:
                return once
            names = self._renamed.get(met[1])
            if names is not None and met[2] == version and names.by_old_name(tensor):
                return names.was
            if met[2] == version or self._explained.get(_storage(tensor)) == version:
                return Ref(met[1])
        return self._leaf(tensor, source)

    def _leaf(self, tensor: Tensor, source: Source | None) -> Ref:
        named = self._parameters.get(id(tensor))
        _, name, owner = named if named is not None and named[0]() is tensor else (None, "", None)
        values = tensor.detach()
        size = values.numel() * values.element_size()
        if self.bytes + size <= self._limit:
            values = copy_of(values)
            self.bytes += size
        elif not self.by_reference:
            self.by_reference = True
            self.notes.append(
                f"the recorded step is given more than {self._limit >> 20} MiB: what lies beyond is kept by reference "
                "and may have changed since"
            )
        if tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= self._began:
            where = f" at {source.path}:{source.line}" if source else ""
            self.notes.append(f"a tensor made where no call could be seen{where} enters the graph as a recorded value")
        entry = Entry(LEAF, name, dtype=tensor.dtype, shape=tuple(tensor.shape), value=values, source=source)
        entry.requires_grad, entry.site = tensor.requires_grad, owner
        entry.storage = _storage(tensor)
        if tensor.requires_grad and tensor.is_leaf:
            # After an optimizer's step the same parameter is another leaf.
            hooked = id(tensor) in self._hooked
            self._hooked[id(tensor)] = entry
            if not hooked:
                self._handles.append(tensor.register_hook(partial(self._gradient, id(tensor))))
        return self._bind(tensor, entry)

    def _gradient(self, key: int, grad: Tensor) -> None:
        self._hooked[key].gradients.append(_bits(grad))

    def _bind(self, tensor: Tensor, entry: Entry) -> Ref:
        self.entries.append(entry)
        return self._map(tensor, len(self.entries) - 1)

    def _map(self, tensor: Tensor, number: int) -> Ref:
        self._known[id(tensor)] = (weakref.ref(tensor), number, _version(tensor))
        return Ref(number)

    def forget(self, tensor: Tensor) -> None:
        """The tensor was given other values: what is known of it no longer holds."""
        self._known.pop(id(tensor), None)

    def received(self, tensors: Iterable[Tensor]) -> None:
        """They, or some of them, hold what other ranks sent, and so do their views; what has a gradient does not."""
        places = {_storage(tensor) for tensor in tensors} - {0}
        for known, _, _ in list(self._known.values()):
            one = known()
            if one is not None and not one.requires_grad and _storage(one) in places:
                self.forget(one)

    # --- calls --------------------------------------------------------------------------------------------------

    def argument(self, value: Any, source: Source | None) -> Any:
        """An argument with its tensors replaced by references."""
        if isinstance(value, Tensor):
            return self.ref(value, source)
        if isinstance(value, torch.dtype):
            return self._dtype(value, source)
        if isinstance(value, _PLAIN) and type(value).__module__ != "numpy":
            return value
        if isinstance(value, (tuple, list)):
            inside = [self.argument(one, source) for one in value]
            return inside if isinstance(value, list) else tuple(inside)
        if isinstance(value, dict):
            return {key: self.argument(one, source) for key, one in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(one, source) for one in (value.start, value.stop, value.step)))
        if isinstance(value, torch.Generator):
            # What the default one draws is told by its own state, as for calls that name no generator.
            return None if value is torch.default_generator else Drawn(value.get_state(), value.device)
        return value if value is Ellipsis else Opaque(value)

    def _dtype(self, dtype: torch.dtype, source: Source | None) -> Any:
        giver = self.dtypes.asked(dtype)
        if giver is None:
            return dtype
        self.entries.append(Entry(DTYPE, "dtype", (self.ref(giver, source),), source=source))
        return Ref(len(self.entries) - 1)

    def call(self, entry: Entry, given: list[tuple[Tensor, int]], result: Any, *, draws: bool) -> None:
        """A call has been made; `given` are its tensors with their versions before, `draws` whether it is random."""
        if draws:
            after = torch.default_generator.get_state()
            if not torch.equal(after, self._rng):
                entry.rng = (self._rng, after)
                self._rng = after
        changed = [tensor for tensor, version in given if _version(tensor) != version]
        entry.mutates = tuple(_storage(tensor) for tensor in changed)
        self.entries.append(entry)
        number = len(self.entries) - 1
        for tensor in changed:
            self._explained[_storage(tensor)] = _version(tensor)
        storages = {_storage(tensor) for tensor, _ in given} if not changed else set()
        if isinstance(result, Tensor):
            self._result(result, entry, number, storages)
        elif isinstance(result, (tuple, list)):
            for index, one in enumerate(result):
                if isinstance(one, Tensor):
                    item = Entry(ITEM, index, (Ref(number),), module=entry.module, source=entry.source, grad=entry.grad)
                    self.entries.append(item)
                    self._result(one, item, len(self.entries) - 1, storages)
                elif isinstance(one, (tuple, list)):
                    self._nested(one, number, index, entry)

    def same(self, tensor: Tensor, was: Ref, *, once: bool) -> None:
        """A cast gave the tensor that it was given: later calls read what it was, but for the next (`once`).

        Where it has two names now, those calls do that are given it by the old one.
        """
        number = self._known[id(tensor)][1]
        if once:
            self._once[id(tensor)] = Ref(number)
            self._map(tensor, was.number)
        elif (names := renamed(was)) is not None:
            self._renamed[number] = names

    def before(self) -> None:
        """A call that may draw random numbers is about to be made: some may have been drawn since the last."""
        now = torch.default_generator.get_state()
        if not torch.equal(now, self._rng):
            self._rng = now

    def _nested(self, values: Any, number: int, index: int, entry: Entry) -> None:
        inner = Entry(ITEM, index, (Ref(number),), module=entry.module, source=entry.source, grad=entry.grad)
        self.entries.append(inner)
        above = len(self.entries) - 1
        for position, one in enumerate(values):
            if isinstance(one, Tensor):
                item = Entry(ITEM, position, (Ref(above),), module=entry.module, source=entry.source, grad=entry.grad)
                self.entries.append(item)
                self._result(one, item, len(self.entries) - 1, set())

    def _result(self, tensor: Tensor, entry: Entry, number: int, storages: set[int]) -> None:
        entry.dtype, entry.shape, entry.storage = tensor.dtype, tuple(tensor.shape), _storage(tensor)
        if entry.storage not in storages and getattr(entry.target, "__name__", entry.target) not in UNINITIALISED:
            entry.bits = _bits(tensor)
        self._map(tensor, number)

    def close(self) -> None:
        """Nothing more is seen: the hooks are taken off, the tensors let go."""
        while self._handles:
            self._handles.pop().remove()
        self._known.clear()
        self._parameters.clear()


def given(args: Any, found: list[tuple[Tensor, int]] | None = None) -> list[tuple[Tensor, int]]:
    """The tensors among arguments, with their versions; parameters of lazy modules have none before the first call."""
    found = [] if found is None else found
    for one in args:
        if isinstance(one, Tensor):
            if not is_lazy(one):
                found.append((one, _version(one)))
        elif isinstance(one, (tuple, list)):
            given(one, found)
        elif isinstance(one, dict):
            given(one.values(), found)
    return found


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _storage(tensor: Tensor) -> int:
    """Where the memory begins that a tensor shares with its views."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else 0


def _bits(tensor: Tensor) -> int | None:
    with torch._C.DisableTorchFunction():
        return fingerprint(tensor)


def copy_of(values: Tensor) -> Tensor:
    """The same values at the same strides, for strides decide the order of sums."""
    if values.layout is not torch.strided or not values.numel() or values.is_contiguous():
        return values.clone()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    if extent > 4 * values.numel():
        return values.clone()
    flat = values.as_strided((extent,), (1,), values.storage_offset()).clone()
    return flat.as_strided(values.shape, values.stride())
