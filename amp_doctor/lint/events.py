"""The typed events of mixed precision: a closed union of what a line of code can do that matters here.

`at` is the syntax node of the call; values are those of `lint.objects`. Checks subscribe to event types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.lint.objects import Object, Value

if TYPE_CHECKING:
    from amp_doctor.lint.state import Region

Args = tuple[tuple[str | None, Value], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Construct:
    """An object of a known kind was built: scaler, optimizer, autocast, module, or of a first-party class."""

    at: int
    object: Object
    args: Args


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Enter:
    """An autocast region begins. `region.enabled` may be undecided."""

    at: int
    region: Region


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Forward:
    """A module (known or merely used as one) is called."""

    at: int
    module: Value
    args: Args
    result: Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scale:
    """`scaler.scale(operand)`; `used` is False for an expression statement."""

    at: int
    scaler: Object
    operand: Value
    used: bool
    sure: bool = True  # enabled without an assumption made here


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Backward:
    """`tensor.backward()`; `scaler` is the one whose scale the tensor carries, if any."""

    at: int
    tensor: Value
    scaler: str | None
    sources: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unscale:
    """`scaler.unscale_(optimizer)`."""

    at: int
    scaler: Object
    optimizer: Object


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Clip:
    """A clip of gradients; `owners` are the oids of the optimizers that own them, () when unknown."""

    at: int
    api: str
    params: Value
    owners: tuple[str, ...]
    max_norm: Value | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GradRead:
    """`p.grad` was read or changed. how: read, write, drop (set to None or zeroed), linear, rescale."""

    at: int
    how: str
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Step:
    """An optimizer step: through `scaler`, or plain when None."""

    at: int
    optimizer: Object
    scaler: Object | None
    closure: Value | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Update:
    """`scaler.update()`."""

    at: int
    scaler: Object
    new_scale: Value | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast:
    """`.half()`, `.float()`, `.to(dtype)` on a module or tensor. how is the method name."""

    at: int
    target: Value
    dtype: str | None
    how: str
    used: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OpCall:
    """A call of a library function or tensor method that a check may want to see.

    `name` is canonical for functions (`torch.masked_fill`) and `Tensor.masked_fill` for methods, whose
    receiver is `receiver`.
    """

    at: int
    name: str
    receiver: Value | None
    args: Args
    result: Value
    used: bool

    def arg(self, position: int, keyword: str) -> Value | None:
        """The argument at `position` (0 is the first after the receiver) or by keyword."""
        plain = [value for key, value in self.args if key is None]
        for key, value in self.args:
            if key == keyword:
                return value
        return plain[position] if position < len(plain) else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operation:
    """A binary operator on at least one tensor."""

    at: int
    op: str
    left: Value
    right: Value
    result: Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Store:
    """`target[index] = value`."""

    at: int
    target: Value
    index: tuple[Value | None, ...]
    value: Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NoneCall:
    """A method called on None: only reported when the path explains why it is None."""

    at: int
    name: str


Event = (
    Construct
    | Enter
    | Forward
    | Scale
    | Backward
    | Unscale
    | Clip
    | GradRead
    | Step
    | Update
    | Cast
    | OpCall
    | Operation
    | Store
    | NoneCall
)
