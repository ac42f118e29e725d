"""The runs of a proof as processes: several ranks, their memory, their end by a signal, and what they are started from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.verdict import judge, run_of
from amp_doctor.probe.fresh import TIMED_OUT, Fresh, Started, attend, sets_early
from amp_doctor.probe.rerun import Command, environment_of, ranks_of, rerun, unrepeatable
from amp_doctor.probe.trial import Trial
from tests.probe.running import command, environment, plain, probed, write
from tests.probe.test_ranks import GROUP, torchrun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A run that tells its process in `pids`, and trains slowly from the second on.
SLOW = """\
import os, signal, subprocess, sys, time
from pathlib import Path

import torch

pids = Path(__file__).with_name("pids")
runs = len(pids.read_text().split()) if pids.exists() else 0
with pids.open("a") as file:
    file.write(f"{os.getpid()}\\n")
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(400):
    x = torch.randn(2, 8)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()
    if runs > 1:
        BETWEEN
        time.sleep(0.05)
"""
STUBBORN = """\
if number == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            with pids.open("a") as file:
                file.write(f"{child.pid}\\n")"""


def started(where: Path, code: str) -> subprocess.Popen[str]:
    """A probe with a proof, in a process group of its own, as a shell starts it."""
    write(where, code)
    line = command("--steps", "6", "--verify", "--verify-steps", "300", "train.py",
                   report=where / "report.txt", profile=where / "profile.json")  # fmt: skip
    return subprocess.Popen(
        line, cwd=where, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def pids(where: Path, wanted: int, patience: float = 100.0) -> list[int]:
    """The processes of the runs so far, once there are so many."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with suppress(OSError):
            numbers = [int(line) for line in (where / "pids").read_text().split()]
            if len(numbers) >= wanted:
                return numbers
        time.sleep(0.05)
    raise AssertionError(f"there were no {wanted} processes in {patience} s")


def alive(numbers: Sequence[int], patience: float = 20.0) -> list[int]:
    """Those that are still there after a while."""
    until = time.monotonic() + patience
    while (left := [one for one in numbers if _is_running(one)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("between", ["pass", STUBBORN], ids=["plain", "stubborn"])
def test_ctrl_c_ends_the_runs_and_tells_what_they_have_shown(tmp_path: Path, between: str) -> None:
    process = started(tmp_path, SLOW.replace("BETWEEN", between))
    numbers = pids(tmp_path, 3 if between == "pass" else 4)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert alive(numbers) == []
    report = (tmp_path / "report.txt").read_text()
    assert "Inconclusive" in report
    assert "it was interrupted" in report
    table = report.partition("\nProof\n")[2].partition("\n\n")[0]
    assert "float32\n" in table
    assert "interrupted" in table.splitlines()[-1]


def test_sigterm_ends_the_runs_and_the_report_still_comes(tmp_path: Path) -> None:
    """As torchrun ends its ranks when somebody types Ctrl-C."""
    process = started(tmp_path, SLOW.replace("BETWEEN", "pass"))
    numbers = pids(tmp_path, 3)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err
    assert alive(numbers) == []
    assert "it was interrupted" in (tmp_path / "report.txt").read_text()


def test_no_run_outlives_a_probe_that_is_killed(tmp_path: Path) -> None:
    process = started(tmp_path, SLOW.replace("BETWEEN", STUBBORN))
    numbers = pids(tmp_path, 4)
    process.kill()
    process.communicate(timeout=60)
    assert alive(numbers) == []


# --- several ranks --------------------------------------------------------------------------------------------------

RANKS = (
    GROUP + "train(DistributedDataParallel(model))\n",
    # Without a group: they meet in the store that torchrun keeps, which the proof has to keep, too.
    "train(model)\n",
)


@pytest.mark.parametrize("code", RANKS, ids=["group", "no group"])
def test_ranks_are_started_again_as_torchrun_does(tmp_path: Path, code: str) -> None:
    run = torchrun(tmp_path, code, "--steps", "6", "--verify", "--format", "json")
    assert run.status == 0, run.err
    assert run.report is not None
    proof = json.loads(run.report)["recommendation"]["verified"]
    assert proof["verdict"] == "verified", proof
    assert [len(one["loss"]) for one in proof["runs"]] == [6, 6, 6]
    assert run.profile is not None
    assert proof["runs"][0]["loss"] == run.profile["loss"]  # both ranks: the mean of two


# Shards of a model whose gradients lie around 2^-45, accumulated over two backward passes.
SHARDED = """\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-30)
generator = torch.Generator().manual_seed(dist.get_rank())
for number in range(40):
    x = torch.randn(32, 16, generator=generator)
    (2.0**-40 * (model(x) - x.sum(1, keepdim=True)).pow(2).mean()).backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_shards_are_scaled_and_skip_together(tmp_path: Path) -> None:
    asked = Command((write(tmp_path, SHARDED),), str(tmp_path), environment(), ranks=2)
    trials = (
        Trial("float32"),
        Trial("float16", True, 2.0**36),
        Trial("float16", True, 1.0),
        Trial("float16", True, 2.0**90),
    )
    with Fresh(environment_of(asked.environment), str(tmp_path), ["torch"]) as fresh:
        done = [rerun(fresh, asked, trial, 6, dry_run=True, seconds=5.0) for trial in trials]
    assert [one.failure for one in done] == [""] * 4
    full, right, small, large = (run_of("", one.profile, done[0].profile) for one in done)
    assert judge(full, right).verdict == "verified", judge(full, right)
    assert right.lost is not None
    assert right.lost < 0.05
    assert small.lost == 1.0
    assert large.skipped == large.steps == 6


def test_a_trial_of_ranks_tells_who_failed_first(tmp_path: Path) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no data')\ntime.sleep(100)\n"
    asked = Command((write(tmp_path, code),), str(tmp_path), environment(), ranks=2)
    began = time.monotonic()
    with Fresh(environment_of(asked.environment), str(tmp_path)) as fresh:
        done = rerun(fresh, asked, Trial("float32"), 5, dry_run=False, seconds=1.0)
    assert done.failure == "rank 1: ValueError: no data"
    assert time.monotonic() - began < 90  # it did not wait for the other


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "1", "RANK": "0"}, ""),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node7"}, ""),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, ""),
        ({"WORLD_SIZE": "4", "RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "several machines"),
        ({"WORLD_SIZE": "4", "RANK": "0", "MASTER_ADDR": "node7"}, "LOCAL_WORLD_SIZE"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "srun"),
        ({"OMPI_COMM_WORLD_SIZE": "8", "WORLD_SIZE": "8"}, "mpirun"),
    ],
)
def test_ranks_that_cannot_be_started_again_are_told_why(given: dict[str, str], word: str) -> None:
    assert word in unrepeatable(given)
    assert bool(unrepeatable(given)) is bool(word)
    assert ranks_of(given) == int(given.get("WORLD_SIZE", "1") if "RANK" in given else "1")


# --- memory ---------------------------------------------------------------------------------------------------------

# Tells the memory of the process above the one that forks: in a run of a proof that is the probe itself.
HEAVY = """\
from pathlib import Path

import os
import torch


def pages(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


file = Path(__file__).with_name("pages")
first = not file.exists()
with file.open("a") as out:
    out.write(f"{pages(os.getpid()) if first else pages(parent(os.getppid()))}\\n")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(SIZE, 64)
        self.out = torch.nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.table(x))


def main():
    torch.manual_seed(0)
    kept = torch.zeros(SIZE if first else 1, 64)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randint(0, 9, (4,))).pow(2).mean().backward()
        optimizer.step()
    return model, optimizer, kept


kept = main()
"""


@pytest.mark.parametrize("steps", [5, 20], ids=["stopped", "finished"])
def test_the_memory_of_the_script_is_given_back_before_it_runs_again(tmp_path: Path, steps: int) -> None:
    size = 800_000  # weights, gradients and `kept`: 600 MB
    name = write(tmp_path, HEAVY.replace("SIZE", str(size)))
    run = probed(tmp_path, "--steps", str(steps), "--verify", name)
    assert run.status == 0, run.err
    at_first, *later = [int(line) for line in (tmp_path / "pages").read_text().split()]
    assert len(later) >= 2
    grown = [(pages - at_first) * os.sysconf("SC_PAGE_SIZE") / 2**20 for pages in later]
    assert max(grown) < 200, grown  # the report is loaded by then, and what a backward pass needs


# --- what the processes are started from ---------------------------------------------------------------------------


class Planned:
    """A process that runs until its time, or until it is signalled."""

    def __init__(self, looks: int, status: int = 0) -> None:
        self.pid, self._looks, self._status = 0, looks, status
        self.signals: list[int] = []

    def poll(self) -> int | None:
        self._looks -= 1
        if self.signals:
            return -self.signals[0]
        return self._status if self._looks < 0 else None


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> list[Planned]:
    """Processes with the numbers of their places: what they are sent they note."""
    planned = [Planned(10**9), Planned(3, 7), Planned(1)]
    for number, one in enumerate(planned):
        one.pid = number

    def kill(pid: int, number: int) -> None:
        planned[pid].signals.append(number)

    monkeypatch.setattr("amp_doctor.probe.fresh.kill", kill)
    return planned


def test_a_group_is_told_in_the_order_of_its_ends(signalled: list[Planned], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_doctor.probe.fresh.LINGER", 0.1)
    assert attend(signalled, 60.0, lambda: False) == [(2, 0), (1, 7), (0, -signal.SIGTERM)]
    assert signalled[1].signals == []


def test_a_group_that_hangs_is_ended(signalled: list[Planned]) -> None:
    assert attend(signalled[:1], 0.05, lambda: False) == [(0, TIMED_OUT)]
    assert signalled[0].signals == [signal.SIGTERM]


def test_a_group_is_ended_when_nobody_wants_to_wait(signalled: list[Planned]) -> None:
    assert attend(signalled[:1], 60.0, lambda: True) == [(0, -signal.SIGTERM)]


@pytest.mark.parametrize(
    ("name", "early"),
    [("OMP_NUM_THREADS", True), ("TORCHINDUCTOR_CACHE_DIR", False), ("CUDA_VISIBLE_DEVICES", False), ("HOME", False)],
)
def test_what_torch_reads_when_it_is_loaded(name: str, early: bool) -> None:
    assert sets_early({"A": "1"}, {"A": "1", name: "x"}) is early
    assert sets_early({name: "x"}, {}) is early
    assert not sets_early({name: "x"}, {name: "x"})


EARLY = """\
import os, sys
from pathlib import Path

loaded = "torch" in sys.modules
os.environ["OMP_NUM_THREADS"] = "2"
import torch

with Path(__file__).with_name("threads").open("a") as file:
    file.write(f"{int(loaded)} {torch.get_num_threads()}\\n")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).pow(2).mean().backward()
    optimizer.step()
"""


def test_a_script_that_sets_what_torch_reads_is_run_before_torch_is_loaded(tmp_path: Path) -> None:
    run = probed(tmp_path, "--steps", "5", "--verify", write(tmp_path, EARLY))
    assert run.status == 0, run.err
    assert set((tmp_path / "threads").read_text().splitlines()) == {"0 2"}


@pytest.mark.parametrize("way", ["forked", "started"])
def test_both_ways_run_the_script_as_python_would(tmp_path: Path, way: str) -> None:
    code = "import sys\nprint(*sys.argv, sys.path[0], __name__, file=sys.stderr)\nraise SystemExit(3)\n"
    asked = Command((write(tmp_path, code), "--lr", "1"), str(tmp_path), environment())
    with Fresh(environment_of(asked.environment), str(tmp_path), ["torch"]) as fresh:
        if way == "started":
            fresh._ways = Started()
        done = rerun(fresh, asked, Trial("float32"), 5, dry_run=False, seconds=1.0)
    assert plain(tmp_path, *asked.words).status == 3
    assert done.failure == f"train.py --lr 1 {tmp_path} __main__"


def test_when_the_process_that_forks_is_gone_they_are_started(tmp_path: Path) -> None:
    asked = Command((write(tmp_path, "raise ValueError('here')\n"),), str(tmp_path), environment())
    with Fresh(environment_of(asked.environment), str(tmp_path)) as fresh:
        for _ in range(2):
            done = rerun(fresh, asked, Trial("float32"), 5, dry_run=False, seconds=1.0)
            assert done.failure == "ValueError: here"
            server = getattr(fresh._ways, "_server", None)
            if server is not None:
                server.kill()
                server.wait()
        assert isinstance(fresh._ways, Started)


def test_both_ways_have_the_same_losses(tmp_path: Path) -> None:
    code = "import torch\nmodel = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    code += "for _ in range(6):\n    model(torch.randn(2, 4)).pow(2).mean().backward()\n    optimizer.step()\n"
    asked = Command((write(tmp_path, code),), str(tmp_path), environment())
    losses = []
    for way in (None, Started()):
        with Fresh(environment_of(asked.environment), str(tmp_path), ["torch"]) as fresh:
            fresh._ways = way
            losses.append(rerun(fresh, asked, Trial("float32"), 5, dry_run=False, seconds=1.0).profile.loss)
    assert losses[0] == losses[1]
    assert len(losses[0]) == 5
