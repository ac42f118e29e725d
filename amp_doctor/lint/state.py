"""What one path knows: variables, attributes, assumptions, autocast regions and the scaling protocol."""

from __future__ import annotations

from dataclasses import dataclass, field

from amp_doctor.lint.assume import Known
from amp_doctor.lint.objects import Tensor, Value, text
from amp_doctor.lint.typestate import Protocol


@dataclass(frozen=True, slots=True)
class Region:
    """An autocast region. dtype is float16, bfloat16, another name, or None when not known.

    `device` is the literal device type or None; `presumed` marks a forward that is only believed to run
    under autocast because the same program calls models inside such a region.
    """

    device: str | None
    dtype: str | None
    enabled: Value
    cache: bool | None = None
    presumed: bool = False
    number: int = 0
    at: int = field(default=0, compare=False)


class State:
    """One path's knowledge. Forked with `copy`, compared with `key`; otherwise changed in place."""

    __slots__ = ("env", "heap", "known", "modes", "protocol", "regions", "steps")

    def __init__(self) -> None:
        self.env: dict[tuple[int, str], Value] = {}
        self.heap: dict[tuple[str, str], Value] = {}
        self.known: Known = {}
        self.protocol = Protocol()
        self.regions: tuple[Region, ...] = ()
        self.modes: tuple[str, ...] = ()
        self.steps: tuple[int, ...] = ()

    def copy(self) -> State:
        other = State.__new__(State)
        other.env = dict(self.env)
        other.heap = dict(self.heap)
        other.known = dict(self.known)
        other.protocol = self.protocol
        other.regions = self.regions
        other.modes = self.modes
        other.steps = self.steps
        return other

    def key(self) -> object:
        """Equal keys: nothing that is done from here on can tell the two paths apart."""
        return (
            frozenset((name, value) for name, value in self.env.items() if not isinstance(value, Tensor) or _telling(value)),
            frozenset(self.heap.items()),
            frozenset(self.known.items()),
            self.protocol,
            self.regions,
            self.modes,
        )

    def forget(self, token: str) -> None:
        """Drop every assumption that mentions a symbol which now has a new value."""
        if self.known:
            stale = [key for key in self.known if token in key]
            for key in stale:
                del self.known[key]

    def leave_frame(self, frame: int) -> None:
        """Drop the variables of a finished call, and what was assumed about symbols nobody holds."""
        for name in [name for name in self.env if name[0] == frame]:
            del self.env[name]

    def describe(self, value: Value) -> str:
        return text(value)


def _telling(tensor: Tensor) -> bool:
    return bool(tensor.scaled or tensor.dtype or tensor.tags or tensor.sources)
