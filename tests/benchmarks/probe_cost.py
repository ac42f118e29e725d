"""`make bench-probe`: what the probe costs, as ratios to the unprobed step in the same run, and whether it keeps its bars.

Each way of running a step has a model of its own. In every round each runs some steps in turn, after some that do not
count; its ratio to the plain step of the same round is taken, and the medians of the rounds are compared. `--check` exits
1 when a bar is missed, `--profile` shows where the time of a probed step goes.
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import pstats
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import torch

from amp_doctor.probe import Probe, count
from amp_doctor.probe.count import Tally
from tests.benchmarks.bars import Bar, parser, ratio, status
from tests.benchmarks.step_models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch import nn

    Step = Callable[[], None]
    Clock = Callable[[], float]

ROUNDS = 7
STEPS = 20
# The first two steps of a probed run name the modules, count the weights and measure what is saved for backward.
WARM_UP = 2
ELEMENTS = 10_000_000

PLAIN, FULL, EVERY_10 = "unprobed", "every step", "--every 10"
DEBUG, ANOMALY = "DebugUnderflowOverflow", "detect_anomaly"
WAYS = (PLAIN, FULL, EVERY_10, DEBUG, ANOMALY)
COUNTING = "counting / clone"


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table and a line per bar; 1 when `--check` is given and a bar is missed."""
    line = parser(__doc__, ROUNDS, MODELS)
    line.add_argument("--device", default="cpu")
    line.add_argument("--steps", type=int, default=STEPS)
    line.add_argument("--cpu-time", action="store_true", help="processor seconds: steadier on a busy machine")
    line.add_argument("--without-numba", action="store_true", help="count as it goes where Numba is not installed")
    line.add_argument("--profile", action="store_true")
    chosen = line.parse_args(arguments)
    if chosen.without_numba:
        count.loop = None
    print("counted by operators of torch" if count.loop is None else "counted in one pass, with Numba")
    if chosen.profile:
        for name in chosen.models:
            print(f"{name}\n{profiled(MODELS[name](chosen.device)[1])}")
        return 0
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    bars = []
    print(f"{'':12}" + "".join(f"{way:>24}" for way in WAYS))
    for name in chosen.models:
        seconds = measured(MODELS[name], chosen.device, chosen.rounds, chosen.steps, clock)
        ratios = {way: ratio(seconds[way], seconds[PLAIN]) for way in WAYS}
        cells = (f"{1000 * median(seconds[way]):9.2f} ms {ratios[way]:6.2f} x" for way in WAYS)
        print(f"{name:12}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
        bars += step_bars(name, ratios)
    bars.append(count_bar(chosen.device, chosen.rounds, clock))
    print(*bars, sep="\n")
    return status(bars, check=chosen.check)


def step_bars(name: str, ratios: Mapping[str, float]) -> list[Bar]:
    """What is promised of one model."""
    return [
        Bar(f"{name}, {FULL}", ratios[FULL], 1.5),
        Bar(f"{name}, {FULL}, against {DEBUG}", ratios[FULL], ratios[DEBUG]),
        Bar(f"{name}, {EVERY_10}", ratios[EVERY_10], 1.1),
        Bar(f"{name}, {EVERY_10}, against {ANOMALY}", ratios[EVERY_10], ratios[ANOMALY]),
    ]


def measured(
    build: Callable[[str], tuple[nn.Module, Step]], device: str, rounds: int, steps: int, clock: Clock
) -> dict[str, list[float]]:
    """Way -> seconds per step, once per round."""
    runs = {way: build(device) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, (model, step) in runs.items():
            with _watched(way, model):
                for _ in range(WARM_UP):
                    step()
                seconds[way].append(timed(lambda step=step: [step() for _ in range(steps)], device, clock) / steps)  # type: ignore[misc]
    return seconds


def count_bar(device: str, rounds: int, clock: Clock, elements: int = ELEMENTS) -> Bar:
    """Counting a tensor of float32 against copying it."""
    values = torch.randn(elements, device=device)
    counted, cloned = [], []
    tally = Tally()
    tally.add(values)
    for _ in range(rounds):
        cloned.append(timed(values.clone, device, clock))
        counted.append(timed(lambda: tally.add(values), device, clock))
    return Bar(f"{COUNTING}, {elements:,} elements", ratio(counted, cloned), 2.0)


def timed(work: Callable[[], object], device: str, clock: Clock) -> float:
    """Seconds until the work is done, on the device too."""
    _wait(device)
    start = clock()
    work()
    _wait(device)
    return clock() - start


def profiled(step: Step, steps: int = 20, lines: int = 40) -> str:
    """Where the time of fully counted steps goes, by cProfile, what calls the rest first."""
    profile = cProfile.Profile()
    with _watched(FULL, None):
        for _ in range(WARM_UP):
            step()
        with profile:
            for _ in range(steps):
                step()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(lines)
    return text.getvalue()


@contextlib.contextmanager
def _watched(way: str, model: nn.Module | None) -> Iterator[None]:
    """What stands around the steps of one round."""
    with contextlib.ExitStack() as stack:
        around: AbstractContextManager[object] | None = None
        if way == FULL:
            around = Probe(steps=1_000_000, mode="observe")
        elif way == EVERY_10:
            around = Probe(steps=1_000_000, mode="observe", every=10)
        elif way == ANOMALY:
            around = torch.autograd.set_detect_anomaly(True)
        elif way == DEBUG and model is not None:
            around = _debugged(model)
        if around is not None:
            stack.enter_context(around)
        yield


@contextlib.contextmanager
def _debugged(model: nn.Module) -> Iterator[None]:
    """Hugging Face's hooks are taken off by hand: they stay for good."""
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {module: dict(module._forward_hooks) for module in model.modules()}
    DebugUnderflowOverflow(model)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module, hooks in before.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
