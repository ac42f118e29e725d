"""Fresh processes for the runs of a proof, one or a group of ranks at a time, and their end, whatever happens.

Each is the leader of a session of its own: what is typed at the terminal does not reach it, and all that it has started
ends with it. On Linux they are forked from a process that has imported torch and run nothing of the script
(cli/forked.py): importing torch three times would cost more than many a script. It leaves that to the runs where the
script sets what torch reads when it is imported. Elsewhere they are started one by one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Seconds between two looks, those that the rest of a group has when one of it has failed, and those between SIGTERM,
# on which a run leaves the profile of what it has seen, and SIGKILL.
TICK = 0.02
LINGER = 10.0
GRACE = 5.0
# The status of what was ended because its time was up, as `timeout` has it.
TIMED_OUT = 124
# Read when torch and the libraries below it are loaded: a script that sets one must be loaded after it.
EARLY = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "NPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH")
# What torchrun tells each rank, and torch sets itself.
NOT_EARLY = ("TORCHELASTIC_", "TORCHINDUCTOR_", "TORCH_NCCL_")


@dataclass(frozen=True, slots=True)
class Job:
    """Arguments of `amp-doctor`, the whole environment, and the file that takes what is said on stderr."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    said: str


class Child(Protocol):
    """A process of this package's own."""

    pid: int

    def poll(self) -> int | None:
        """Its status, None while it runs."""


def attend(children: Sequence[Child], seconds: float, stopping: Callable[[], bool]) -> list[tuple[int, int]]:
    """Wait for a group: (number, status) of each, in the order of their ends; nobody is left when it returns.

    When one fails the others have `LINGER` seconds; after `seconds`, or when `stopping()`, all are ended.
    """
    ended: list[tuple[int, int]] = []
    left = dict(enumerate(children))
    until = time.monotonic() + seconds
    try:
        while left:
            for number, child in list(left.items()):
                status = child.poll()
                if status is not None:
                    del left[number]
                    ended.append((number, status))
                    if status:
                        until = min(until, time.monotonic() + LINGER)
            if not left:
                break
            if stopping():
                return [*ended, *_ended(left)]
            if time.monotonic() >= until:
                failed = any(status for _, status in ended)
                stopped = _ended(left)
                return [*ended, *stopped] if failed else [(number, TIMED_OUT) for number, _ in stopped]
            time.sleep(TICK)
    except BaseException:
        _ended(left)
        raise
    return ended


def _ended(left: dict[int, Child]) -> list[tuple[int, int]]:
    """SIGTERM, some time, SIGKILL; the statuses."""
    statuses: dict[int, int] = {}
    for number, until in ((signal.SIGTERM, time.monotonic() + GRACE), (_KILL, time.monotonic() + 2 * GRACE)):
        for key, child in left.items():
            if key not in statuses:
                kill(child.pid, number)
        while len(statuses) < len(left) and time.monotonic() < until:
            for key, child in left.items():
                if key not in statuses and (status := child.poll()) is not None:
                    statuses[key] = status
            time.sleep(TICK)
    return list(statuses.items())


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def kill(pid: int, number: int = _KILL) -> None:
    """Signal a leader and all that it has started."""
    with suppress(OSError):
        os.killpg(pid, number) if hasattr(os, "killpg") else os.kill(pid, number)


class Started:
    """Interpreters that are started one by one."""

    def run(self, jobs: Sequence[Job], seconds: float, directory: str) -> list[tuple[int, int]]:
        """One process per job; see `attend`."""
        children: list[subprocess.Popen[bytes]] = []
        try:
            for job in jobs:
                with open(job.said, "wb") as said:
                    child = subprocess.Popen(
                        [sys.executable, "-m", "amp_doctor", *job.words],
                        cwd=directory,
                        env=dict(job.environment),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=said,
                        start_new_session=True,
                    )
                children.append(child)
            return attend(children, seconds, lambda: False)
        finally:
            for child in children:
                kill(child.pid)

    def close(self) -> None:
        """Nothing is kept between two runs."""


class Forked:
    """Asks a process of cli/forked.py; `modules` are those that it loads beforehand."""

    def __init__(self, environment: Mapping[str, str], directory: str, modules: Iterable[str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "amp_doctor.cli.forked"],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # Not as an argument: there may be thousands.
        self._modules: list[str] | None = sorted(modules)

    def run(self, jobs: Sequence[Job], seconds: float, directory: str) -> list[tuple[int, int]]:
        """One process per job; see `attend`. An OSError when there is nobody who answers."""
        asked = {"jobs": [asdict(job) for job in jobs], "seconds": seconds, "directory": directory}
        try:
            if self._modules is not None:
                modules, self._modules = self._modules, None
                self._say(modules)
            self._say(asked)
            return self._answer()
        except KeyboardInterrupt:
            self._say({})
            stdout: Any = self._server.stdout
            if select.select([stdout], [], [], 3 * GRACE)[0]:
                self._answer()
            raise

    def close(self) -> None:
        """It ends when nobody can ask any more, with all that it has forked."""
        for pipe in (self._server.stdin, self._server.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._server.wait(3 * GRACE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def _say(self, what: dict[str, Any] | list[str]) -> None:
        stdin: Any = self._server.stdin
        stdin.write(json.dumps(what).encode() + b"\n")
        stdin.flush()

    def _answer(self) -> list[tuple[int, int]]:
        stdout: Any = self._server.stdout
        line = stdout.readline()
        if not line:
            raise ConnectionError("the process that forks has ended")
        return [(number, status) for number, status in json.loads(line)]


class Fresh:
    """`with Fresh(...) as fresh:` starts processes in whichever way there is."""

    def __init__(self, environment: Mapping[str, str], directory: str, modules: Iterable[str] = ()) -> None:
        self._environment, self._directory, self._modules = environment, directory, modules
        self._ways: Started | Forked | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._ways is not None:
            self._ways.close()
            self._ways = None

    def run(self, jobs: Sequence[Job], seconds: float) -> list[tuple[int, int]]:
        """(number, status) of each job, in the order of their ends."""
        if self._ways is None:
            self._ways = self._way()
        try:
            return self._ways.run(jobs, seconds, self._directory)
        except OSError:
            if isinstance(self._ways, Started):
                raise
            self._ways.close()
            self._ways = Started()
            return self._ways.run(jobs, seconds, self._directory)

    def _way(self) -> Started | Forked:
        if sys.platform != "linux":
            return Started()
        early = sets_early(self._environment, os.environ)
        return Forked(self._environment, self._directory, () if early else self._modules)


def sets_early(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a script has changed a variable that is read when torch is loaded."""
    return any(
        before.get(name) != after.get(name)
        for name in {*before, *after}
        if name.startswith(EARLY) and not name.startswith(NOT_EARLY)
    )


def loaded() -> list[str]:
    """The modules of torch and numpy that this process has loaded, for another one to load beforehand.

    Only torch itself where it sees a GPU: some of its modules ask for the driver, which must not be forked.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    if torch.cuda._is_compiled() and torch.cuda.is_available():
        return ["torch"]
    return [name for name in sys.modules if name.split(".")[0] in ("torch", "numpy")]
