"""What a forked child has to forget: it inherits our hooks, and is no part of the probe."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_callbacks: list[Callable[[], None]] = []
_registered: list[bool] = []


def in_children(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` in every child forked from now on; the result takes that back."""
    if not _registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
        _registered.append(True)
    _callbacks.append(callback)

    def withdraw() -> None:
        if callback in _callbacks:
            _callbacks.remove(callback)

    return withdraw


def _forked() -> None:
    """Last in, first out, as their effects lie upon each other."""
    while _callbacks:
        _callbacks.pop()()
