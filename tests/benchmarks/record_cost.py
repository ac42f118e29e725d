"""`make bench-record`: what recording a training step costs, against that step.

Ratios between steps of the same rounds, a plain one and a recorded one by turns, in processor seconds of one thread. The
recorder's start and end are included; the graph is written after the step and counts separately, and so does the first
recorded step of a process, for which Python has everything to fetch. `--check` exits 1 when a bar is missed.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

from amp_doctor.probe.names import Names
from amp_doctor.probe.record import Recorder
from tests.benchmarks.bars import Bar, parser, ratio, status
from tests.benchmarks.dryrun_cost import BUILDS

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

# At least so many steps of each kind a round, and so many seconds.
ROUNDS, STEPS, SECONDS = 7, 5, 0.05
BAR = 5.0


def perceptron(_device: str) -> tuple[nn.Module, Step]:
    """Three layers of width 32: a step below a millisecond, where every call of Python shows."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


MODELS = {**BUILDS, "perceptron": perceptron}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table and a line per bar; 1 when `--check` is given and a bar is missed."""
    chosen = parser(__doc__, ROUNDS, MODELS).parse_args(arguments)
    torch.set_num_threads(1)
    bars = []
    print(f"{'':12}{'step':>14}{'recorded':>24}{'first time':>14}{'graph':>14}")
    for name in chosen.models:
        plain, recorded, first, graph = measured(*MODELS[name]("cpu"), chosen.rounds)
        cost = ratio(recorded, plain)
        print(
            f"{name:12}{1000 * median(plain):11.2f} ms{1000 * median(recorded):13.2f} ms{cost:6.2f} x"
            f"{1000 * first:11.2f} ms{1000 * graph:11.2f} ms",
            flush=True,
        )
        bars.append(Bar(f"{name}, recorded", cost, BAR))
    print(*bars, sep="\n")
    return status(bars, check=chosen.check)


def measured(model: nn.Module, step: Step, rounds: int) -> tuple[list[float], list[float], float, float]:
    """Seconds per plain and per recorded step, once per round; of the first recorded step; and of writing its graph."""
    names = Names()
    names.meet(model)
    step()
    step()
    first, recorder = _recorded(step, names)
    start = time.process_time()
    recorder.stop()
    graph = time.process_time() - start
    plain, recorded = [], []
    steps = max(STEPS, int(SECONDS / first))
    for _ in range(rounds):
        seconds = [0.0, 0.0]
        for _ in range(steps):
            start = time.process_time()
            step()
            seconds[0] += time.process_time() - start
            seconds[1] += _recorded(step, names)[0]
        plain.append(seconds[0] / steps)
        recorded.append(seconds[1] / steps)
    return plain, recorded, first, graph


def _recorded(step: Step, names: Names) -> tuple[float, Recorder]:
    start = time.process_time()
    recorder = Recorder(names)
    recorder.start()
    step()
    recorder.cancel()
    return time.process_time() - start, recorder


if __name__ == "__main__":
    sys.exit(main())
