"""Two real processes under torchrun: all stop at the same step, and rank 0 reports the sum."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch._C._distributed_c10d import HashStore, Store

from amp_doctor.diagnosis.profile import Profile, Steps
from amp_doctor.probe.ranks import Ranks
from tests.conftest import ROOT
from tests.probe.running import Run, command, environment, found, probed, write
from tests.probe.test_runner import signalled

if TYPE_CHECKING:
    from pathlib import Path

TRAINER = """\
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def train(model, steps=1000):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        optimizer.zero_grad()
        ((rank + 1) * model(torch.ones(2, 4))).sum().backward()
        optimizer.step()
        print(f"rank {rank} step {number}\\n", end="", flush=True)


"""
GROUP = 'dist.init_process_group("gloo")\n'


def torchrun(where: Path, code: str, *words: str, **more: str) -> Run:
    """A probe in each of two processes."""
    write(where, TRAINER + code)
    report, profile = where / "report.txt", where / "profile.json"
    line = command(*words, "train.py", report=report, profile=profile)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *line],
        cwd=where,
        env=environment(**more),
        capture_output=True,
        check=False,
        text=True,
    )
    return found(done.returncode, done.stdout, done.stderr, report, profile)


def lines(*counts: int) -> list[str]:
    return sorted(f"rank {rank} step {number}" for rank, count in enumerate(counts) for number in range(count))


def test_ddp_stops_at_the_same_step_and_is_summed(tmp_path: Path) -> None:
    run = torchrun(
        tmp_path, GROUP + "train(DistributedDataParallel(model))\ndist.destroy_process_group()\n", "--steps", "4"
    )
    assert (run.status, run.steps, run.ended) == (0, 4, "steps"), run.err
    assert sorted(run.out.splitlines()) == lines(3, 3)
    assert "Error" not in run.err
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (2, "")
    assert run.report is not None
    first, second, last = run.profile["layers"]
    # Two ranks, four steps, and the parameters of the layer.
    assert first["sites"]["weight_grad"]["elements"] == 2 * 4 * 40
    assert last["sites"]["weight_grad"]["elements"] == 2 * 4 * 9
    assert second["sites"]["activation"]["elements"] == 2 * 4 * 16


def test_fsdp2_stops_at_the_same_step_and_is_summed(tmp_path: Path) -> None:
    code = (
        "from torch.distributed.fsdp import fully_shard\nfrom torch.distributed.device_mesh import init_device_mesh\n"
    )
    code += 'init_device_mesh("cpu", (2,))\ntrain(fully_shard(model))\n'
    run = torchrun(tmp_path, code, "--steps", "4")
    assert (run.status, run.steps, run.ended) == (0, 4, "steps"), run.err
    assert sorted(run.out.splitlines()) == lines(3, 3)
    assert run.profile is not None
    assert run.profile["ranks"] == 2
    sharded = "parameters are sharded over several ranks (DTensor)"
    assert run.notes == f"no step was recorded and replayed: {sharded}"
    assert (run.profile["replay"]["recorded"], run.profile["replay"]["reason"]) == (False, sharded)


@pytest.mark.parametrize("end", ["dist.destroy_process_group()", "dist.barrier()", ""])
def test_ranks_that_finish_by_themselves(tmp_path: Path, end: str) -> None:
    run = torchrun(tmp_path, GROUP + f"train(DistributedDataParallel(model), 2)\n{end}\n", "--steps", "4")
    assert (run.status, run.steps, run.ended) == (0, 2, "finished"), run.err
    assert sorted(run.out.splitlines()) == lines(2, 2)
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (2, "")


@pytest.mark.parametrize("own", ["0", "1"], ids=["store-of-torchrun", "store-of-ours"])
def test_ranks_without_a_process_group(tmp_path: Path, own: str) -> None:
    """The torchrun of torch 2.4 has no store of its own, as that of later releases where it is told not to."""
    run = torchrun(tmp_path, "train(model)\n", "--steps", "4", TORCH_DISABLE_SHARE_RDZV_TCP_STORE=own)
    assert (run.status, run.steps, run.ended) == (0, 4, "steps"), run.err
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (2, "")


def test_a_rank_that_raises(tmp_path: Path) -> None:
    code = (
        GROUP
        + "model = DistributedDataParallel(model)\ntrain(model, 2)\nif rank:\n    raise ValueError('no data')\ntrain(model)\n"
    )
    run = torchrun(tmp_path, code, "--steps", "4")
    assert run.status == 1
    assert "ValueError: no data" in run.err
    assert "amp_doctor/probe" not in run.err
    # Rank 0 meets a closed connection, or torchrun's SIGTERM: what it has seen is kept either way.
    assert run.ended in ("exception", "interrupted")
    assert run.steps == 2
    assert run.report is not None


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    code = (
        GROUP
        + "model = DistributedDataParallel(model)\ntrain(model, 2)\nif rank:\n    os.kill(os.getpid(), 9)\ntrain(model)\n"
    )
    run = torchrun(tmp_path, code, "--steps", "4")
    assert run.status == 1
    assert run.ended in ("exception", "interrupted")
    assert run.steps == 2
    assert run.report is not None


RELAUNCHED = """\
import os, subprocess, sys

if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "INIT": f"file://{os.getcwd()}/store"}
    command = WORDS
    os.chdir("/")
    other = subprocess.Popen(command, env={**os.environ, "RANK": "1"}, text=True)
"""


@pytest.mark.parametrize("words", [["train.py"], ["-m", "train"]])
def test_a_script_that_starts_its_other_ranks_itself(tmp_path: Path, words: list[str]) -> None:
    """As Lightning does with strategy ddp."""
    again = 'os.path.abspath(sys.argv[0]), "--lr"' if len(words) == 1 else '"-m", __spec__.name, "--lr"'
    code = RELAUNCHED.replace("WORDS", f"[sys.executable, {again}]") + TRAINER
    code += 'assert sys.argv[1:] == ["--lr"], sys.argv\nassert __name__ == "__main__"\n'
    code += 'dist.init_process_group("gloo", os.environ["INIT"], rank=rank, world_size=2)\n'
    write(tmp_path, code + "train(DistributedDataParallel(model))\n")
    run = probed(tmp_path, "--steps", "4", *words, "--lr", PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert (run.status, run.err, run.steps, run.ended) == (0, "", 4, "steps")
    assert sorted(run.out.splitlines()) == lines(3, 3)
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (2, "")


STUCK = """\
import ctypes, torch
libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256)
libc.pthread_mutex_lock(lock)
print("now", flush=True)
libc.pthread_mutex_lock(lock)
"""


def test_a_rank_that_is_stuck_inside_torch_answers_to_sigterm(tmp_path: Path) -> None:
    """As when NCCL waits for a rank that has died, and torchrun ends the others."""
    write(tmp_path, STUCK)
    run = signalled(tmp_path, signal.SIGTERM, "train.py", RANK="0", WORLD_SIZE="2")
    assert (run.status, run.err, run.steps, run.ended) == (-signal.SIGTERM, "", 0, "interrupted")
    assert "ended by SIGTERM" in run.notes
    assert run.report is not None


# --- the exchange itself --------------------------------------------------------------------------------------------------


def member(rank: int, size: int, store: Store) -> Ranks:
    ranks = Ranks()
    ranks.rank, ranks.size, ranks._store = rank, size, store
    return ranks


def profile(steps: int, note: str) -> Profile:
    return Profile(command=("train.py",), steps=Steps(9, steps, steps), ended="steps", ranks=1, notes=(note,))


def test_profiles_meet_on_rank_0() -> None:
    store = HashStore()
    assert member(2, 3, store).merged(profile(3, "c"), 0.0) is None
    assert member(1, 3, store).merged(profile(2, "b"), 0.0) is None
    merged = member(0, 3, store).merged(profile(1, "a"), 0.0)
    assert merged == (profile(1, "a") + profile(2, "b") + profile(3, "c"), [])


def test_a_rank_that_does_not_come_is_named() -> None:
    store = HashStore()
    member(2, 3, store).merged(profile(3, "c"), 0.0)
    assert member(0, 3, store).merged(profile(1, "a"), 0.0) == (profile(1, "a") + profile(3, "c"), [1])


def test_a_broken_message_is_no_rank() -> None:
    store = HashStore()
    store.set("amp-doctor/1", "what is this")
    assert member(0, 2, store).merged(profile(1, "a"), 60.0) == (profile(1, "a"), [1])


def test_a_process_alone_is_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    alone = replace(profile(3, "alone"), ranks=1)
    assert Ranks().merged(alone, 0.0) == (alone, [])
    assert Ranks().leave(0.0)
