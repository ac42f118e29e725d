"""A probe changes nothing: weights, gradients, buffers, optimizer state, random numbers and what is printed are the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.probe.fixture_models import FILES, kept_models, load, title
from tests.probe.neutral_runs import RUNS
from tests.probe.outcomes import outcome

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("every", [1, 3])
def test_runs(name: str, every: int) -> None:
    plain, _ = outcome(RUNS[name], None)
    probed, probe = outcome(RUNS[name], {"mode": "observe", "every": every})
    assert probed == plain
    assert probe is not None
    assert [note for note in probe.profile.notes if "switched off" in note] == []
    assert probe.profile.ended == "finished"


@pytest.mark.parametrize("file", FILES, ids=title)
def test_fixture_models(file: Path) -> None:
    def run() -> list[nn.Module]:
        with kept_models() as roots:
            load(file).main()
        return roots

    plain, _ = outcome(run, None)
    probed, probe = outcome(run, {"mode": "observe"})
    assert probed == plain
    assert probe is not None
    assert [note for note in probe.profile.notes if "switched off" in note] == []


# Calibration changes what reduced precision does and nothing else: without any there is nothing to change.
@pytest.mark.parametrize("name", sorted(set(RUNS) - {"scaler_with_half", "scaler_that_overflows", "scaler_and_fused", "bfloat16_autocast", "scaler_with_float32"}))  # fmt: skip
def test_calibration_without_reduced_precision(name: str) -> None:
    plain, _ = outcome(RUNS[name], None)
    probed, _ = outcome(RUNS[name], {"mode": "calibrate"})
    assert probed == plain


def test_everything_is_given_back() -> None:
    before = _patchable()
    outcome(RUNS["scaler_with_half"], {"mode": "auto"})
    assert _patchable() == before


def _patchable() -> list[object]:
    from torch.nn.modules import module
    from torch.optim import optimizer

    owners = (torch.amp.GradScaler, torch.optim.Optimizer, torch.autocast, torch.autograd)
    names = ("__init__", "scale", "unscale_", "step", "update", "add_param_group", "__enter__", "backward", "grad")
    hooks = (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    )
    return [
        *(vars(owner).get(name) for owner in owners for name in names),
        torch.compile,
        *(dict(one) for one in hooks),
    ]
