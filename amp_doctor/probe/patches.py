"""Functions of torch that are wrapped while a session is on, and given back when it ends."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_INHERITED = object()


class Patches:
    """Owns every wrapped attribute; `undo` restores them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name`, which must be in the owner's own namespace, by `make(original)`."""
        original = vars(owner)[name]
        setattr(owner, name, wraps(original)(make(original)))
        self._undo.append((owner, name, original))

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` in the place of `owner.name`, which the owner may inherit."""
        self._undo.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restore what was wrapped or replaced; twice is once."""
        while self._undo:
            owner, name, original = self._undo.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
