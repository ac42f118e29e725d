"""`make bench`: how fast the linter is, as ratios to other programs in the same run, and whether it keeps its bars.

Every command runs in a process of its own, start-up included, the commands of a group in turn; the medians of the
rounds are compared. `--check` exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.lint.glance import gated
from tests.benchmarks.ecosystem import LIST, read
from tests.benchmarks.measure import Timing, peak, rounds, run
from tests.benchmarks.packages import HOME, sources
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(sys.executable).parent
LINT = [str(BIN / "amp-doctor"), "lint", "--isolated", "--exit-zero"]
RUFF = [str(BIN / "ruff"), "check", "--isolated", "--exit-zero", "--no-respect-gitignore"]
JOBS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
MEMORY = 300
"""Megabytes that linting transformers may hold, all processes together."""

# As many processes as the linter uses, and like there the largest files first.
PARSE = """\
import sys
from multiprocessing import get_context
from pathlib import Path
import libcst

def parse(file):
    libcst.parse_module(Path(file).read_bytes())

with get_context("fork").Pool(int(sys.argv[1])) as pool:
    for _ in pool.imap_unordered(parse, Path(sys.argv[2]).read_text().splitlines()):
        pass
"""

PLAIN = """\
import torch
from torch import nn


def train(model: nn.Module, loader, optimizer, epochs: int) -> None:
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = [(torch.randn(8, 32), torch.randint(10, (8,))) for _ in range(100)]
    train(net, data, torch.optim.SGD(net.parameters(), lr=0.1), epochs=3)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. `bar` is the highest ratio allowed, or the lowest where `least` is set; None informs only."""

    what: str
    ours: str
    theirs: str
    ratio: float
    cpu: float | None = None
    bar: float | None = None
    least: bool = False

    @property
    def kept(self) -> bool:
        return self.bar is None or (self.ratio >= self.bar if self.least else self.ratio <= self.bar)

    def cells(self) -> tuple[str, ...]:
        sign, verdict = (">=", "yes") if self.least else ("<=", "yes")
        bar = "" if self.bar is None else f"{sign} {self.bar:g}"
        cpu = "" if self.cpu is None else f"{self.cpu:.2f}"
        return (
            self.what,
            self.ours,
            self.theirs,
            f"{self.ratio:.2f}",
            cpu,
            bar,
            "" if self.bar is None else verdict if self.kept else "NO",
        )


def main() -> int:
    groups: dict[str, Callable[[int, Path], list[Row]]] = {
        "startup": startup,
        "transformers": transformers,
        "memory": memory,
        "espnet": espnet,
    }
    parser = argparse.ArgumentParser(description="How fast the linter is, against ruff, libcst and TorchFix.")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--rounds", type=int, default=5, help="how often each command runs (default: 5)")
    parser.add_argument("groups", nargs="*", help=f"some of {', '.join(groups)}; all by default")
    arguments = parser.parse_args()
    chosen = arguments.groups or list(groups)
    if unknown := [name for name in chosen if name not in groups]:
        parser.error(f"no such group: {', '.join(unknown)}")
    load = os.getloadavg()[0]
    print(f"{JOBS} processors, load {load:.1f} before the start, medians of {arguments.rounds} rounds", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen:
            rows += groups[name](arguments.rounds, Path(scratch))
    show(rows)
    return int(arguments.check and not all(row.kept for row in rows))


def startup(times: int, scratch: Path) -> list[Row]:
    plain = scratch / "plain.py"
    plain.write_text(PLAIN)
    script = ROOT / "fixtures" / "demo" / "train.py"
    timings = rounds(
        {
            "script": [*LINT, "--no-cache", str(script)],
            "libcst": [sys.executable, "-c", "import libcst, click, rich"],
            "plain": [*LINT, "--no-cache", str(plain)],
            "rich": [sys.executable, "-c", "import click, rich"],
        },
        scratch,
        4 * times,
    )
    return [
        compared("a training script", timings["script"], "import libcst, click, rich", timings["libcst"], 1.5),
        compared("a file without AMP", timings["plain"], "import click, rich", timings["rich"], 1.5),
    ]


def transformers(times: int, scratch: Path) -> list[Row]:
    tree = package("transformers")
    files = sorted((file for file in tree.rglob("*.py") if gated(file.read_bytes())), key=lambda f: -f.stat().st_size)
    listed = scratch / "gated.txt"
    listed.write_text("\n".join(map(str, files)))
    print(
        f"transformers: {len(files)} of {sum(1 for _ in tree.rglob('*.py'))} files mention mixed precision", flush=True
    )
    timings = rounds(
        {
            "cold": [*LINT, "--no-cache", "."],
            "ruff": [*RUFF, "--no-cache", "."],
            "parse": [sys.executable, "-c", PARSE, str(JOBS), str(listed)],
            "warm": [*LINT, "--cache-dir", str(scratch / "cache"), "."],
            "ruff-warm": [*RUFF, "--cache-dir", str(scratch / "ruff"), "."],
        },
        tree,
        times,
    )
    return [
        compared("transformers, no cache", timings["cold"], "ruff check --no-cache", timings["ruff"], 3),
        compared("transformers, no cache", timings["cold"], "libcst.parse_module, gated files", timings["parse"], 1.6),
        compared("transformers, warm cache", timings["warm"], "ruff check --no-cache", timings["ruff"], 1),
        compared("transformers, warm cache", timings["warm"], "ruff check, warm cache", timings["ruff-warm"], None),
    ]


def memory(_times: int, _scratch: Path) -> list[Row]:
    held = peak([*LINT, "--no-cache", "."], package("transformers"))
    if held is None:
        return []
    most = held / 1e6
    return [Row("transformers, memory", f"{most:.0f} MB", f"{MEMORY} MB", most / MEMORY, None, 1)]


def espnet(times: int, scratch: Path) -> list[Row]:
    tree = package("espnet")
    ours = rounds({"cold": [*LINT, "--no-cache", "."]}, tree, min(times, 3))["cold"]
    least = 50
    # Long enough to tell whether the bar is kept, and no longer: it takes minutes.
    limit = least * ours.wall * 1.1
    taken = run([*torchfix(), "."], tree, limit)
    if taken is None:
        theirs = f"TorchFix, stopped after {limit:.0f} s"
        return [Row("espnet, times faster", f"{ours.wall:.2f} s", theirs, limit / ours.wall, None, least, least=True)]
    ratio, cpu = taken[0] / ours.wall, taken[1] / ours.cpu
    return [
        Row("espnet, times faster", f"{ours.wall:.2f} s", f"TorchFix {taken[0]:.0f} s", ratio, cpu, least, least=True)
    ]


def compared(what: str, ours: Timing, name: str, theirs: Timing, bar: float | None) -> Row:
    return Row(
        what,
        f"{ours.wall:.2f} s",
        f"{name} {theirs.wall:.2f} s",
        ours.wall / theirs.wall,
        ours.cpu / theirs.cpu,
        bar,
    )


def package(name: str) -> Path:
    versions, _ = read(LIST)
    return sources(name, versions[name])


def torchfix() -> list[str]:
    """TorchFix in an environment of its own, made on first use."""
    home = HOME / "torchfix"
    program = home / "bin" / "torchfix"
    if not program.exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "torchfix"], check=True)
    return [str(program)]


def show(rows: list[Row]) -> None:
    table = [("", "ours", "theirs", "ratio", "of CPU time", "bar", "kept"), *(row.cells() for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
