"""Functions that stand in a recorded graph where torch has none that fx could print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def apply_function(function: Any, *args: Any) -> Any:
    """A `torch.autograd.Function`, applied: its own backward is kept."""
    return function.apply(*args)


def generator_at(state: Tensor, device: torch.device) -> torch.Generator:
    """A generator of its own in a recorded state: a replay never draws from the script's."""
    generator = torch.Generator(device)
    generator.set_state(state)
    return generator
