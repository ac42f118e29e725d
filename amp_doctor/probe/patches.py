"""Functions of torch that are wrapped while a session is on, and given back when it ends."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Patches:
    """Owns every wrapped attribute; `undo` restores them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name`, which must be in the owner's own namespace, by `make(original)`."""
        original = vars(owner)[name]
        setattr(owner, name, wraps(original)(make(original)))
        self._undo.append((owner, name, original))

    def undo(self) -> None:
        """Restore what was wrapped; twice is once."""
        while self._undo:
            owner, name, original = self._undo.pop()
            setattr(owner, name, original)
