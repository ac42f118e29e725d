"""A model whose gradients are exactly the numbers that are planted in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from amp_doctor.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.profile import Site


class Planted(nn.Module):
    """Its output and its weight both get the gradient `values`, times whatever the loss is multiplied by."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones_like(values))

    def forward(self) -> Tensor:
        return self.weight * 1.0


def planted(
    batches: Iterable[Tensor], scale: float | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Site]:
    """The sites of a model that is given each batch of gradients in a step, under a GradScaler where there is a scale."""
    steps = list(batches)
    model = Planted(steps[0].to(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=10_000, enabled=scale is not None)
    with Probe(steps=len(steps), mode="observe") as probe:
        for values in steps:
            optimizer.zero_grad()
            out = model()
            # The gradient of the sum with respect to the output is `values` itself, times the scale.
            loss = (out * values.to(dtype)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    (layer,) = [layer for layer in probe.profile.layers if layer.type == "Planted"]
    assert probe.profile.steps.attempted == len(steps)
    return dict(layer.sites)
