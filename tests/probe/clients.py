"""The client scripts of fixtures/clients, and how they are run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT
from tests.probe.running import Run, command, environment, found

if TYPE_CHECKING:
    from pathlib import Path

CLIENTS = ROOT / "fixtures" / "clients"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


@dataclass(frozen=True, slots=True)
class Client:
    """A script with its arguments, and what a probe of `steps` steps has to find in it.

    `layers` are some of the layers that must be there, `linear` one with all five roles; `optimizers` the name and the
    attempts of each, `notes` a piece of each note. `prints` is something the script says before it is stopped.
    """

    name: str
    words: tuple[str, ...]
    steps: int
    prints: str
    layers: tuple[str, ...]
    linear: str | None
    optimizers: tuple[tuple[str, int], ...]
    notes: tuple[str, ...] = ()
    ranks: int = 1
    launch: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def plain(self, where: Path) -> Run:
        """The script as its user runs it."""
        done = _run([sys.executable, *self.launch, *self._script()], where)
        return Run(done.returncode, done.stdout, done.stderr)

    def probed(self, where: Path, *options: str) -> Run:
        """The script under the probe; its report is JSON, in a file."""
        home = where.parent / f"{where.name}-probe"
        home.mkdir()
        report, profile = home / "report.json", home / "profile.json"
        python, *probe = command(
            "--output-format", "json", *(options or ("--steps", str(self.steps), *self.options)), *self._script(),
            report=report, profile=profile,
        )  # fmt: skip
        done = _run([python, *self.launch, *probe], where)
        return found(done.returncode, done.stdout, done.stderr, report, profile)

    def _script(self) -> list[str]:
        """Words that are files of fixtures/clients are given as paths."""
        return [str(CLIENTS / word) if (CLIENTS / word).exists() else word for word in self.words]


def report(run: Run) -> dict[str, Any]:
    """The report of a probe as JSON values."""
    assert run.report is not None, run.err
    values: dict[str, Any] = json.loads(run.report)
    return values


def torchrun(client: Client) -> Client:
    """The same under torchrun, in two processes."""
    return replace(client, launch=TORCHRUN, ranks=2)


def _run(words: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, cwd=where, env=environment(), capture_output=True, text=True)
