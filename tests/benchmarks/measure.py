"""Commands -> how long they take and how much memory they hold, in rounds, so that a busy machine hits all alike."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGE = os.sysconf("SC_PAGE_SIZE")
# An installed program has its bytecode at hand, whatever is set for developing here.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(slots=True)
class Timing:
    """Seconds by the clock, and of all processors together, once per round."""

    walls: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)

    @property
    def wall(self) -> float:
        return median(self.walls)

    @property
    def cpu(self) -> float:
        return median(self.computed)


def run(command: Sequence[str], folder: Path, limit: float = math.inf) -> tuple[float, float] | None:
    """Wall and processor seconds of one run, its children included; None when it was stopped at `limit`."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
        stopper = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL)) if limit < math.inf else None
        if stopper is not None:
            stopper.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        if stopper is not None:
            stopper.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == -signal.SIGKILL and wall >= limit:
            return None
        if process.returncode:
            said.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=said.read())
        return wall, usage.ru_utime + usage.ru_stime


def rounds(commands: Mapping[str, Sequence[str]], folder: Path, times: int) -> dict[str, Timing]:
    """Every command in turn, `times` times, after one round that does not count."""
    timings = {name: Timing() for name in commands}
    for turn in range(times + 1):
        for name, command in commands.items():
            taken = run(command, folder)
            if turn and taken is not None:
                timings[name].walls.append(taken[0])
                timings[name].computed.append(taken[1])
    return timings


def peak(command: Sequence[str], folder: Path) -> int | None:
    """The most memory that a command and its children hold at a time, in bytes; None where there is no /proc.

    Resident pages are summed over the processes, so what they share counts once for each.
    """
    if not Path("/proc/self/statm").exists():
        return None
    most = 0
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            most = max(most, sum(map(_resident, _family(process.pid))))
            time.sleep(0.01)
    return most


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0
