"""A step is recorded where one process can replay it alone; elsewhere the profile says why there is none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch

from amp_doctor.probe.context import Probe
from amp_doctor.probe.recordable import unrecordable
from amp_doctor.probe.session import Session
from amp_doctor.probe.settings import Settings
from tests.probe.test_ranks import GROUP, torchrun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COPIED = """\
class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


"""
# What a model is wrapped in, or its output goes through -> what the profile says of it.
SHARED = {
    "static_graph": (
        "train(DistributedDataParallel(model, static_graph=True))\n",
        "DistributedDataParallel with static_graph=True averages gradients inside the backward pass",
    ),
    "collective_in_backward": (
        COPIED + "model.register_forward_hook(lambda *given: Copied.apply(given[-1]))\ntrain(model)\n",
        "allreduce exchanges tensors with ranks that take no part in the replay",
    ),
}


@pytest.mark.parametrize("options", ["", ", find_unused_parameters=True"])
def test_under_plain_ddp_the_first_rank_replays_its_own_gradients_bit_for_bit(tmp_path: Path, options: str) -> None:
    run = torchrun(tmp_path, GROUP + f"train(DistributedDataParallel(model{options}))\n", "--steps", "4")
    assert (run.status, run.steps, run.ended, run.notes) == (0, 4, "steps", ""), run.err
    assert run.profile is not None
    assert run.profile["replay"]["recorded"]
    assert run.profile["replay"]["exact"]
    assert len(run.profile["replay"]["outcomes"]) == 4


@pytest.mark.parametrize("name", SHARED)
def test_what_talks_to_other_ranks_is_not_replayed(tmp_path: Path, name: str) -> None:
    code, reason = SHARED[name]
    run = torchrun(tmp_path, GROUP + code, "--steps", "4")
    assert (run.status, run.steps, run.ended) == (0, 4, "steps"), run.err
    assert reason in run.notes
    assert run.profile is not None
    assert not run.profile["replay"]["recorded"]
    assert reason in run.profile["replay"]["reason"]


def test_a_gpu_is_named() -> None:
    session = Session(Settings())
    session.device = torch.device("cuda")
    assert unrecordable(session) == "the model is on cuda; steps are recorded on the CPU only"
    session.device = torch.device("cpu")
    assert unrecordable(session) == ""


@pytest.mark.parametrize("enter", [nullcontext, lambda: torch.device("cpu")], ids=["", "default_device"])
def test_a_run_of_one_step_is_replayed_and_one_of_none_says_so(
    enter: Callable[[], AbstractContextManager[Any]],
) -> None:
    with enter():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Probe(steps=1) as probe:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert probe.profile.replay is not None
        assert (probe.profile.replay.recorded, probe.profile.replay.exact) == (True, True)
        with Probe(steps=1) as probe:
            model(torch.ones(2, 4)).sum().backward()
    assert probe.profile.replay is not None
    assert not probe.profile.replay.recorded
    assert probe.profile.replay.reason == "the run ended before its first step was over"
