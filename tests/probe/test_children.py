"""Trainers in processes of their own are stopped and counted like the script itself; other processes are left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.probe.running import plain, probed, write
from tests.probe.test_runner import hurried

if TYPE_CHECKING:
    from pathlib import Path

TRAINER = """\
import os
import signal
import sys

import torch
import torch.multiprocessing as mp


def train(rank=0, steps=1000, after=None, lr=0.1):
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    if after == "raise":
        raise ValueError("no data")
    if after == "exit":
        sys.exit(3)
    if after == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if after is not None:
        print(after, flush=True)


"""
STARTED = """\
if __name__ == "__main__":
    context = mp.get_context("CONTEXT")
    processes = [context.Process(target=train, args=(rank, *ARGUMENTS[rank])) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""


def started(context: str, *arguments: tuple[object, ...]) -> str:
    return TRAINER + STARTED.replace("CONTEXT", context).replace("ARGUMENTS", str(arguments))


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_processes_that_train_are_stopped_and_summed(tmp_path: Path, context: str) -> None:
    write(tmp_path, started(context, (), ()))
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "[0, 0]\n", "", 4, "steps")
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (2, "")
    [layer] = run.profile["layers"]
    # Two processes, four steps, five parameters.
    assert layer["sites"]["weight_grad"]["elements"] == 2 * 4 * 5


def test_mp_spawn_returns_as_if_the_trainers_had_finished(tmp_path: Path) -> None:
    write(tmp_path, TRAINER + 'if __name__ == "__main__":\n    mp.spawn(train, nprocs=2)\n    print("joined")\n')
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "joined\n", "", 4, "steps")
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (2, "")


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_subclass_of_process(tmp_path: Path, context: str) -> None:
    code = """\
class Trainer(mp.get_context("CONTEXT").Process):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def run(self):
        train(0, self.steps)


if __name__ == "__main__":
    trainer = Trainer(1000)
    trainer.start()
    trainer.join()
    print(trainer.exitcode, "run" in vars(trainer), type(trainer.run).__name__)
"""
    write(tmp_path, TRAINER + code.replace("CONTEXT", context))
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps) == (0, "0 False method\n", "", 4)


def test_parent_and_child_are_summed(tmp_path: Path) -> None:
    code = 'if __name__ == "__main__":\n    child = mp.Process(target=train)\n    child.start()\n    child.join()\n    train()\n'
    write(tmp_path, TRAINER + code)
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.err, run.steps, run.ended) == (0, "", 4, "steps")
    assert run.profile is not None
    assert run.profile["ranks"] == 2


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_failing_child_fails_as_in_a_plain_run(tmp_path: Path, context: str) -> None:
    write(tmp_path, started(context, (2, "raise"), (2, "exit")))
    one, other = plain(tmp_path, "train.py"), probed(tmp_path, "--steps", "4", "train.py")
    assert (other.status, other.out, other.err) == (one.status, one.out, one.err)
    assert other.out == "[1, 3]\n"
    assert (other.steps, other.ended) == (2, "exception")
    assert "Process-1 failed: ValueError: no data" in other.notes
    assert "Process-2 failed: SystemExit: 3" in other.notes


def test_mp_spawn_tells_the_failure_of_a_trainer(tmp_path: Path) -> None:
    write(tmp_path, TRAINER + 'if __name__ == "__main__":\n    mp.spawn(train, args=(2, "raise"), nprocs=1)\n')
    one, other = plain(tmp_path, "train.py"), probed(tmp_path, "--steps", "4", "train.py")
    assert (other.status, other.out, other.err) == (one.status, one.out, one.err)
    assert other.status == 1
    assert (other.steps, other.ended) == (2, "exception")


def test_what_a_killed_child_had_seen_is_kept(tmp_path: Path) -> None:
    write(tmp_path, started("spawn", (3, "kill"), (3, "done")))
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps) == (0, "done\n[-9, 0]\n", "", 3)
    assert "SpawnProcess-1 was killed; what it had seen until then is kept" in run.notes
    # Saved after its first step, and every few seconds.
    assert "the processes made different numbers of steps: 1, 3" in run.notes


def test_different_numbers_of_steps_are_told(tmp_path: Path) -> None:
    write(tmp_path, started("fork", (2,), ()))
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.steps) == (0, "[0, 0]\n", 4)
    assert run.notes == "the processes made different numbers of steps: 2, 4"


def test_a_child_that_does_not_train_is_no_rank(tmp_path: Path) -> None:
    code = 'if __name__ == "__main__":\n    child = mp.Process(target=print, args=("child",))\n    child.start()\n    child.join()\n    train(0, 2)\n'
    write(tmp_path, TRAINER + code)
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "child\n", "", 2, "finished")
    assert run.profile is not None
    assert (run.profile["ranks"], run.notes) == (1, "")


def test_a_child_that_swallows_the_stop_is_ended(tmp_path: Path) -> None:
    code = """\
def stubborn():
    while True:
        try:
            train()
        except:
            print("caught", flush=True)


if __name__ == "__main__":
    child = mp.Process(target=stubborn)
    child.start()
    child.join()
    print(child.exitcode)
"""
    write(tmp_path, TRAINER + code)
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "caught\ncaught\n0\n", "", 4, "steps")
    assert "Process-1 did not let itself be stopped and was ended" in run.notes


def test_a_parent_that_waits_for_a_stopped_child_is_ended(tmp_path: Path) -> None:
    code = """\
def child(queue):
    train()
    queue.put("result")


if __name__ == "__main__":
    queue = mp.Queue()
    mp.Process(target=child, args=(queue,)).start()
    queue.get()
"""
    write(tmp_path, TRAINER + code)
    run = hurried(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "", "", 4, "steps")


# Lightning and torch's elastic agent wait so: they look from time to time whether there is a result.
POLLING = """\
def child(queue):
    train()
    queue.put("result")


def evaluate():
    model = torch.nn.Linear(256, 256)
    until = time.process_time() + 3
    while time.process_time() < until:
        model(torch.ones(64, 256))
    print("evaluated")


if __name__ == "__main__":
    queue = mp.Queue()
    process = mp.Process(target=child, args=(queue,))
    process.start()
    process.join()
    evaluate()
    while queue.empty():
        time.sleep(0.05)
"""


def test_a_parent_that_does_nothing_but_wait_has_not_long_to_wait(tmp_path: Path) -> None:
    """What it does before, such as a last evaluation, is not cut short."""
    hurry = "from amp_doctor.probe import alarm\nalarm.IDLE = 2.0\n"
    write(tmp_path, f"import time\n{hurry}{TRAINER}{POLLING}")
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "evaluated\n", "", 4, "steps")
    assert not run.notes


DEADLINE = """\
import time
from amp_doctor.probe.children import Watched
from amp_doctor.probe.saving import read
from amp_doctor.probe.settings import Settings

process = mp.get_context("fork").Process(target=train)
process.run = Watched(process, Settings(steps=1000), time.time() - 1, "child.json", ".")
process.start()
process.join()
profile = read("child.json")
print(process.exitcode, profile.steps.attempted, profile.ended)
"""


def test_children_keep_to_the_time_limit(tmp_path: Path) -> None:
    """When the time is up, their next step is the last."""
    write(tmp_path, TRAINER + DEADLINE)
    run = plain(tmp_path, "train.py")
    assert (run.out, run.err) == ("0 1 time-limit\n", "")


def test_a_fork_of_its_own_is_left_alone(tmp_path: Path) -> None:
    code = """\
pid = os.fork()
if pid == 0:
    train(0, 10, "child")
    sys.stdout.flush()
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
train(0, 2, "parent")
"""
    write(tmp_path, TRAINER + code)
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps, run.ended) == (0, "child\n5\nparent\n", "", 2, "finished")


POOLS = {
    "multiprocessing.pool": "with mp.Pool(1) as pool:\n        pool.apply(train, (0, 10, 'done'))",
    "concurrent.futures": "from concurrent.futures import ProcessPoolExecutor as Pool\n"
    "    with Pool(1) as pool:\n        pool.submit(train, 0, 10, 'done').result()",
}


@pytest.mark.parametrize("home", POOLS)
def test_pools_are_left_alone_and_named(tmp_path: Path, home: str) -> None:
    write(tmp_path, TRAINER + f'if __name__ == "__main__":\n    {POOLS[home]}\n')
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps) == (0, "done\n", "", 0)
    assert f"processes of {home} were started, which are not probed" in run.notes


def test_programs_that_a_script_starts_are_named(tmp_path: Path) -> None:
    write(tmp_path, TRAINER + "train(0, 10, 'done')\n", "inner.py")
    write(tmp_path, "import subprocess, sys\nsubprocess.run([sys.executable, 'inner.py'], check=True)\n")
    run = probed(tmp_path, "--steps", "4", "train.py")
    assert (run.status, run.out, run.err, run.steps) == (0, "done\n", "", 0)
    assert "the script started other Python programs, which are not probed: inner.py" in run.notes
