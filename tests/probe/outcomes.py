"""What training leaves behind, as bits: two runs that did the same leave the same."""

from __future__ import annotations

import contextlib
import io
import random
from typing import TYPE_CHECKING, Any

import torch

from amp_doctor.probe import Probe
from tests.probe.fixture_models import bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

# More than any of them takes: the run ends by itself.
FOREVER = 10_000


def outcome(run: Callable[[], list[nn.Module]], probed: dict[str, Any] | None) -> tuple[object, Probe | None]:
    """Everything that training leaves behind, and the probe that watched it if any."""
    torch.manual_seed(0)
    random.seed(0)
    said = io.StringIO()
    probe = Probe(steps=FOREVER, **probed) if probed is not None else None
    with contextlib.redirect_stdout(said), probe or contextlib.nullcontext():
        models = run()
    left = [
        (name, bits(tensor)) for model in models for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    gradients = [
        bits(one.grad.coalesce().values() if one.grad.is_sparse else one.grad)
        for model in models
        for one in model.parameters()
        if one.grad is not None
    ]
    hooks = [
        (len(module._forward_hooks), len(module._backward_hooks)) for model in models for module in model.modules()
    ]
    return (left, gradients, hooks, said.getvalue(), _random_numbers()), probe


def _random_numbers() -> tuple[object, ...]:
    """Where the generators stand."""
    graphics = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.zeros(1)
    return bits(torch.get_rng_state()), bits(graphics), random.getstate()
