"""What can only be known on a GPU: the planted models, neutrality and the cost there, in under four minutes.

    python -m tests.benchmarks.gpu_check

One verdict per line; the status is 1 when one of them is FAIL. Without a GPU it says so and ends with 0. `--device cpu
--quick` runs a part of everything on the CPU, so that the script itself can be tested anywhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

# cuBLAS is reproducible only with a workspace of fixed size, asked for before CUDA starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from amp_doctor.probe import Probe
from tests.benchmarks.bars import ratio
from tests.benchmarks.probe_cost import count_bar, measured, step_bars, timed
from tests.benchmarks.step_models import MODELS
from tests.probe import neutral_runs
from tests.probe.fixture_models import FILES, kept_models, load, mismatches, run, title
from tests.probe.outcomes import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import nn

LIMIT = 230.0
# Reads back from the device that a probed step may add: the counts, the operators' largest results, the loss.
READS = 8
QUICK_FILES = ("vanishing_rnn", "t5_feed_forward", "attention_logits", "healthy_cnn", "unseen/endless_skipping")
QUICK_RUNS = ("residual_in_place", "scaler_and_fused")


@dataclass(slots=True)
class Verdicts:
    """Prints one line per check, and stops starting new ones when the time is up."""

    device: str
    limit: float
    began: float = field(default_factory=time.perf_counter)
    failed: int = 0
    left_out: int = 0

    def check(self, name: str, work: Callable[[], Sequence[str]]) -> None:
        """`work` returns what is wrong; what it raises is wrong too."""
        if time.perf_counter() - self.began > self.limit:
            self.left_out += 1
            return
        try:
            wrong = list(work())
        except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
            wrong = [f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"]
        self.failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'ok':5}{name}{': ' if wrong else ''}{'; '.join(wrong)}", flush=True)

    def close(self) -> int:
        """The last line; the exit status."""
        seconds = time.perf_counter() - self.began
        rest = f", {self.left_out} left out for want of time" if self.left_out else ""
        print(f"{self.failed} failed{rest}, {seconds:.0f} s on {_device_name(self.device)}")
        return int(self.failed > 0)


def main(arguments: list[str] | None = None) -> int:
    """Run every check on the device; 0 when none failed, or when there is no such device."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a part of everything")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which no check is begun")
    chosen = parser.parse_args(arguments)
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false, so nothing was checked")
        return 0
    verdicts = Verdicts(chosen.device, chosen.limit)
    before = neutral_runs.DEVICE, torch.are_deterministic_algorithms_enabled()
    neutral_runs.DEVICE = chosen.device
    try:
        with torch.device(chosen.device):
            _all(verdicts, chosen.quick)
    finally:
        neutral_runs.DEVICE = before[0]
        torch.use_deterministic_algorithms(before[1])
    return verdicts.close()


def _all(verdicts: Verdicts, quick: bool) -> None:
    device = verdicts.device
    files = [file for file in FILES if not quick or title(file) in QUICK_FILES]
    runs = [name for name in neutral_runs.RUNS if not quick or name in QUICK_RUNS]
    names = list(MODELS)[:1] if quick else list(MODELS)
    rounds, steps = (1, 3) if quick else (5, 20)
    # The cost first, while nothing else has touched the allocator and the clocks.
    if not quick:
        for name in names:
            for line in _cost(name, device, rounds, steps):
                verdicts.check(line[0], lambda line=line: line[1])  # type: ignore[misc]
        bar = count_bar(device, rounds, time.perf_counter)
        verdicts.check(str(bar), lambda: [] if bar.holds else ["the bar is missed"])
    for name in names:
        verdicts.check(f"reads back, {name}", lambda name=name: _reads(name, device))  # type: ignore[misc]
    verdicts.check("autocast in float16 with a scaler", lambda: _half(device))
    for file in files:
        verdicts.check(f"findings, {title(file)}", lambda file=file: _findings(file, device))  # type: ignore[misc]
    torch.use_deterministic_algorithms(True, warn_only=True)
    for name in runs:
        verdicts.check(f"neutral, {name}", lambda name=name: _neutral(neutral_runs.RUNS[name]))  # type: ignore[misc]
    for file in files:
        verdicts.check(f"neutral, {title(file)}", lambda file=file: _neutral(_kept(file, device)))  # type: ignore[misc]


def _cost(name: str, device: str, rounds: int, steps: int) -> list[tuple[str, list[str]]]:
    seconds = measured(MODELS[name], device, rounds, steps, time.perf_counter)
    ratios = {way: ratio(taken, seconds["unprobed"]) for way, taken in seconds.items()}
    return [(str(bar), [] if bar.holds else ["the bar is missed"]) for bar in step_bars(name, ratios)]


def _findings(file: Path, device: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Probe(steps=20, script=str(file)) as probe:
            run(file, device)
        return [*probe.profile.notes, *mismatches(file, probe.findings)]


def _neutral(trained: Callable[[], list[nn.Module]]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, _ = outcome(trained, None)
        again, _ = outcome(trained, None)
        probed, probe = outcome(trained, {"mode": "observe"})
    if plain != again:
        print("     not reproducible on this device even without a probe: not compared")
        return []
    off = [note for note in probe.profile.notes if "switched off" in note] if probe else []
    return [*off, *(["something differs under the probe"] if plain != probed else [])]


def _kept(file: Path, device: str) -> Callable[[], list[nn.Module]]:
    def trained() -> list[nn.Module]:
        with kept_models() as roots:
            load(file, device).main()
        return roots

    return trained


def _reads(name: str, device: str) -> list[str]:
    """How often a counted step waits for the device, by torch's own warnings, against the plain step."""
    if not device.startswith("cuda"):
        return []
    _, step = MODELS[name](device)
    timed(lambda: [step() for _ in range(3)], device, time.perf_counter)
    plain = _waits(step)
    with Probe(steps=1_000, mode="observe"):
        for _ in range(3):
            step()
        probed = _waits(step)
    more = (probed - plain) / 5
    return [f"a step reads back {more:.1f} times more than without a probe"] if more > READS else []


def _waits(step: Callable[[], None], steps: int = 5) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            for _ in range(steps):
                step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in met)


def _half(device: str) -> list[str]:
    """The CNN in real mixed precision: calibrated first, then observed in float16, without a finding."""
    model, _ = MODELS["CNN"](device)
    # A CPU without native float16 takes a hundred times as long.
    size = 32 if device.startswith("cuda") else 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device)
    with Probe(steps=20) as probe:
        for _ in range(20):
            x, y = torch.randn(16, 3, size, size), torch.randint(0, 10, (16,))
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    profile = probe.profile
    wrong = [*profile.notes, *(finding.message for finding in probe.findings)]
    observed = {layer.observed["activation"].dtype for layer in profile.layers if "activation" in layer.observed}
    if "float16" not in observed:
        wrong.append(f"nothing was observed in float16, but in {sorted(observed)}")
    if profile.steps.attempted != 20:
        wrong.append(f"{profile.steps.attempted} steps were counted, not 20")
    return wrong


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


if __name__ == "__main__":
    sys.exit(main())
