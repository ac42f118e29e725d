"""Runs a training script for a few optimizer steps and counts what its tensors hold; the only home of torch.

In a notebook or a larger program:

    from amp_doctor.probe import Probe

    with Probe(steps=50) as probe:
        train()
    print(probe.recommendation.snippet)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.probe.context import Probe

__all__ = ["Probe"]


def __getattr__(name: str) -> object:
    """`Probe` is looked up when it is asked for: the runner comes by here before the script has imported torch."""
    if name == "Probe":
        from amp_doctor.probe.context import Probe

        return Probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
