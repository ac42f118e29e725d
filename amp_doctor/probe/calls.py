"""Functions that stand in a recorded graph where torch has none that fx could print."""

from __future__ import annotations

from typing import Any


def apply_function(function: Any, *args: Any) -> Any:
    """A `torch.autograd.Function`, applied: its own backward is kept."""
    return function.apply(*args)
