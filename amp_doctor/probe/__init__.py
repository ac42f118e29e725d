"""Runs a training script for a few optimizer steps and counts what its tensors hold; the only home of torch.

In a notebook or a larger program:

    from amp_doctor.probe import Probe

    with Probe(steps=50) as probe:
        train()
    print(probe.recommendation.snippet)
"""

from amp_doctor.probe.session import Probe

__all__ = ["Probe"]
