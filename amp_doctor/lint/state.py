"""What one path knows: variables, attributes, assumptions, autocast regions and the scaling protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amp_doctor.lint.typestate import Protocol

if TYPE_CHECKING:
    from amp_doctor.lint.assume import Known
    from amp_doctor.lint.objects import Value


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
    at: int = field(default=0, compare=False)


class State:
    """One path's knowledge. Forked with `copy`, compared with `same`; otherwise changed in place."""

    __slots__ = ("env", "heap", "known", "modes", "protocol", "regions", "temps")

    def __init__(self) -> None:
        self.env: dict[tuple[int, str], Value] = {}
        self.heap: dict[tuple[str, str], Value] = {}
        self.known: Known = {}
        self.protocol = Protocol()
        self.regions: tuple[Region, ...] = ()
        self.modes: tuple[str, ...] = ()
        self.temps: dict[tuple[int, str], Value] = {}

    def copy(self) -> State:
        """A fork of this path."""
        other = State.__new__(State)
        other.env = dict(self.env)
        other.heap = dict(self.heap)
        other.known = dict(self.known)
        other.protocol = self.protocol
        other.regions = self.regions
        other.modes = self.modes
        other.temps = dict(self.temps)
        return other

    def same(self, other: State) -> bool:
        """Nothing that is done from here on can tell the two paths apart."""
        return (
            self.known == other.known  # most often what tells them apart
            and self.protocol == other.protocol
            and self.regions == other.regions
            and self.modes == other.modes
            and self.env == other.env
            and self.temps == other.temps
            and self.heap == other.heap
        )

    def forget(self, token: str) -> None:
        """Drop every assumption that mentions a symbol which now has a new value."""
        if self.known:
            stale = [key for key in self.known if token in key]
            for key in stale:
                del self.known[key]

    def leave_frame(self, frame: int) -> None:
        """Drop the variables and temporaries of a finished call."""
        for table in (self.env, self.temps):
            for name in [name for name in table if name[0] == frame]:
                del table[name]
