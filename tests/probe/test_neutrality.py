"""A probe changes nothing: weights, gradients, buffers, optimizer state, random numbers and what is printed are the same bits."""

from __future__ import annotations

import contextlib
import io
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from amp_doctor.probe import Probe
from tests.probe.fixture_models import FILES, bits, kept_models, load, title
from tests.probe.neutral_runs import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    return (left, gradients, hooks, said.getvalue(), bits(torch.get_rng_state()), random.getstate()), probe


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
