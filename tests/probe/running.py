"""Scripts that are run for the tests: plainly, and under `amp-doctor probe`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# A model and `step()`, to put before what a script is about.
TRAINING = """\
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


"""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a script. `report` is the text of the report, `profile` that of --profile; None when not written."""

    status: int
    out: str
    err: str
    report: str | None = None
    profile: dict[str, Any] | None = None

    @property
    def notes(self) -> str:
        """The notes of the profile, one a line."""
        assert self.profile is not None, self.err
        return "\n".join(self.profile["notes"])

    @property
    def steps(self) -> int:
        assert self.profile is not None, self.err
        count: int = self.profile["steps"]["attempted"]
        return count

    @property
    def ended(self) -> str:
        assert self.profile is not None, self.err
        how: str = self.profile["ended"]
        return how


def write(where: Path, code: str, name: str = "train.py") -> str:
    """Write a script; its name."""
    file = where / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    return name


def environment(**more: str) -> dict[str, str]:
    """As the tests have it, with this checkout importable from anywhere, and nothing that a launcher has set."""
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "COLUMNS")}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"} | more


def plain(where: Path, *words: str, **more: str) -> Run:
    """`python WORDS...` in `where`."""
    done = _run([sys.executable, *words], where, more)
    return Run(done.returncode, done.stdout, done.stderr)


def _run(words: list[str], where: Path, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        check=False,
        cwd=where,
        env=environment(**more),
        capture_output=True,
        text=True,
        errors="backslashreplace",
    )


def command(*words: str, report: Path, profile: Path) -> list[str]:
    """The command line of a probe that leaves its report and its profile in files."""
    files = ["--output", str(report), "--profile", str(profile)]
    return [sys.executable, "-m", "amp_doctor", "probe", *files, *words]


def probed(where: Path, *words: str, **more: str) -> Run:
    """`amp-doctor probe WORDS...` in `where`; the report does not mix with what the script prints."""
    home = where.parent / f"{where.name}-probe"
    home.mkdir(exist_ok=True)
    report, profile = home / "report.txt", home / "profile.json"
    for file in (report, profile):
        file.unlink(missing_ok=True)
    done = _run(command(*words, report=report, profile=profile), where, more)
    return found(done.returncode, done.stdout, done.stderr, report, profile)


def found(status: int, out: str, err: str, report: Path, profile: Path) -> Run:
    """What a probe has left."""
    return Run(
        status,
        out,
        err,
        report.read_text("utf-8") if report.exists() else None,
        json.loads(profile.read_text("utf-8")) if profile.exists() else None,
    )
