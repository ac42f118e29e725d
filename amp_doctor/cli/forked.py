"""A process that has loaded torch and this package, and forks the runs of a proof: `python -m amp_doctor.cli.forked`.

It runs nothing of any script. On stdin come lines of JSON, first the modules to load, then groups of jobs; on stdout
goes how they ended. When stdin ends it ends, and all that it has forked.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import warnings
from contextlib import suppress
from typing import Any

from amp_doctor.cli import main as amp_doctor
from amp_doctor.probe.fresh import attend, kill

# What a run loads besides what its script does.
OURS = ("cli.probe", "probe.run", "probe.session", "probe.impose", "probe.widen", "probe.dryrun", "diagnosis.serial")


class Fork:
    """One that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its status, negative for a signal; None while it runs. What it leaves behind is ended with it."""
        if self._status is None:
            gone = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if gone is not None:
                kill(self.pid)
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def main() -> None:
    """Load, then fork until nobody asks any more; a forked process comes out of here as well, as `amp-doctor`."""
    # Out of the way of what is loaded, and of the processes that are forked.
    asked, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    words = _serve(asked, answers)
    if words is not None:
        amp_doctor(words)


def _load(modules: list[str]) -> None:
    names = [*modules, *(f"amp_doctor.{name}" for name in OURS)] if modules else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            # What another process has loaded may not load by itself.
            with suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(asked: int, answers: int) -> list[str] | None:
    """None when nobody asks any more; in a forked process the words of its command line."""
    with os.fdopen(asked, "rb", buffering=0) as lines:
        _load(json.loads(lines.readline() or "[]"))
        while line := lines.readline():
            request = json.loads(line)
            if not request:
                continue  # a stop that came when all had ended
            forks = []
            for job in request["jobs"]:
                pid = _fork()
                if not pid:
                    os.close(answers)
                    return _become(job, request["directory"])
                forks.append(Fork(pid))
            ended = attend(forks, request["seconds"], _Listening(lines))
            with suppress(OSError):
                os.write(answers, json.dumps(ended).encode() + b"\n")
    return None


class _Listening:
    """Whether a line has come, or the end: there is only one thing to say while a group runs."""

    def __init__(self, lines: Any) -> None:
        self._lines, self._heard = lines, False

    def __call__(self) -> bool:
        if not self._heard and select.select([self._lines], [], [], 0)[0]:
            self._lines.readline()
            self._heard = True
        return self._heard


def _fork() -> int:
    with warnings.catch_warnings():
        # Of threads: those of linear algebra libraries, which look after themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(job: dict[str, Any], directory: str) -> list[str]:
    """Take on the environment, the streams and the command line of a job."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = os.open(job["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(said, 2)
    os.close(said)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(directory)
    words: list[str] = job["words"]
    package = importlib.import_module("amp_doctor")
    sys.argv = [os.path.join(os.path.dirname(package.__file__ or ""), "__main__.py"), *words]
    sys.orig_argv = [sys.executable, "-m", "amp_doctor", *words]
    return words


if __name__ == "__main__":
    main()
