"""`make bench-dryrun`: what a training step costs under the dry run, against float32 and against autocast on the CPU.

Ratios between steps of the same rounds, in processor seconds of one thread; `--check` exits 1 when a bar is missed. The bar
against autocast on the CPU is for processors without float16 arithmetic of their own, and is left out on others.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

from amp_doctor.probe.dryrun import DryRun
from tests.benchmarks.bars import Bar, parser, ratio, status
from tests.benchmarks.step_models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Build = Callable[[str], tuple[nn.Module, Callable[[], None]]]

ROUNDS, STEPS = 7, 5
FLOAT32, DRY, CPU_HALF = "float32", "dry run, FP16", "CPU autocast, FP16"
WAYS = (FLOAT32, DRY, CPU_HALF)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(1000, 128), nn.LSTM(128, 256, 2), nn.Linear(256, 100)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        tags: torch.Tensor = self.head(self.lstm(self.words(words))[0])
        return tags.flatten(0, 1)


def lstm(_device: str) -> tuple[nn.Module, Callable[[], None]]:
    """Two layers of width 256 on 16 sequences of 32."""
    torch.manual_seed(0)
    model = _Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randint(0, 1000, (32, 16)), torch.randint(0, 100, (512,))

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, step


BUILDS: dict[str, Build] = {**MODELS, "LSTM": lstm}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table and a line per bar; 1 when `--check` is given and a bar is missed."""
    chosen = parser(__doc__, ROUNDS, BUILDS).parse_args(arguments)
    torch.set_num_threads(1)
    native = _native_float16()
    bars = []
    print(f"{'':12}" + "".join(f"{way:>28}" for way in WAYS))
    for name in chosen.models:
        seconds = measured(BUILDS[name], chosen.rounds)
        ratios = {way: ratio(seconds[way], seconds[FLOAT32]) for way in seconds}
        cells = (f"{1000 * median(seconds[way]):9.2f} ms {ratios[way]:6.2f} x" for way in ratios)
        print(f"{name:12}" + "".join(f"{cell:>28}" for cell in cells), flush=True)
        bars.append(Bar(f"{name}, {DRY}", ratios[DRY], 2.0))
        if not native and CPU_HALF in seconds:
            bars.append(Bar(f"{name}, {DRY}, against {CPU_HALF}", ratio(seconds[DRY], seconds[CPU_HALF]), 0.2))
    print(*bars, sep="\n")
    return status(bars, check=chosen.check)


def measured(build: Build, rounds: int) -> dict[str, list[float]]:
    """Way -> seconds per step, once per round."""
    runs = {way: build("cpu") for way in WAYS}
    try:
        with _running(CPU_HALF, runs[CPU_HALF][0]):
            runs[CPU_HALF][1]()
    except RuntimeError:  # oneDNN has no LSTM in float16 for most processors
        del runs[CPU_HALF]
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(rounds):
        for way, (model, step) in runs.items():
            with _running(way, model):
                step()
                steps = 1 if way == CPU_HALF else STEPS
                start = time.process_time()
                for _ in range(steps):
                    step()
                seconds[way].append((time.process_time() - start) / steps)
    return seconds


@contextmanager
def _running(way: str, model: nn.Module) -> Iterator[None]:
    """The forward pass of `model` under autocast, as a script has it."""
    if way == FLOAT32:
        yield
        return
    forward = model.forward
    device = "cuda" if way == DRY else "cpu"

    def under_autocast(*args: object, **kwargs: object) -> object:
        with torch.autocast(device, dtype=torch.float16):
            return forward(*args, **kwargs)

    model.forward = under_autocast
    try:
        if way == DRY:
            with DryRun():
                yield
        else:
            yield
    finally:
        model.forward = forward


def _native_float16() -> bool:
    test = getattr(torch.cpu, "_is_avx512_fp16_supported", None) or getattr(torch.cpu, "_is_amx_fp16_supported", None)
    return bool(test and test())


if __name__ == "__main__":
    sys.exit(main())
