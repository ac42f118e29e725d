"""One run of a proof: the script once more in fresh processes, as a Trial says; its profile, and how it failed."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import amp_doctor
from amp_doctor.diagnosis.profile import Profile
from amp_doctor.probe.fresh import TIMED_OUT, Job
from amp_doctor.probe.saving import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._C._distributed_c10d import TCPStore

    from amp_doctor.probe.fresh import Fresh
    from amp_doctor.probe.trial import Trial

# Steps on which gradients are counted: the first, and so many more.
LOOKS = 4
# The reason of a proof that somebody did not wait for.
CUT = "it was interrupted"
# A run may take so many times what the probed run took, and so many seconds more, before it is taken to hang.
PATIENCE, SECONDS = 20.0, 120.0
# Launchers with a world of their own, by what they tell their ranks.
LAUNCHERS = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun"}
# As a traceback ends.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)(: |$)")
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Command:
    """How to run the script once more: `words` are -m, if any, the script and its arguments.

    `directory` and `environment` are those from before the script has run; `options` go to `amp-doctor probe`. `ranks`
    processes are started, as torchrun does; `unrepeatable` is empty, or says why the script cannot be run again.
    """

    words: tuple[str, ...]
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    dry_run: bool = False
    ranks: int = 1
    unrepeatable: str = ""


@dataclass(frozen=True, slots=True)
class Rerun:
    """What came of a run: an empty profile when it left none, `failure` in its last words, whether it was `cut` off."""

    profile: Profile
    failure: str = ""
    cut: bool = False


def rerun(fresh: Fresh, command: Command, trial: Trial, steps: int, *, dry_run: bool, seconds: float) -> Rerun:
    """Run it; Ctrl-C ends it, and what it has seen until then is kept. `seconds` is what a run of the steps takes."""
    with tempfile.TemporaryDirectory(prefix="amp-doctor-") as home:
        file = os.path.join(home, "profile.json")
        words = (
            *("probe", "--mode", "calibrate" if trial.dtype == "float32" else "observe", "--steps", str(steps)),
            *("--every", str(max(1, steps // LOOKS)), "--profile", file, "--trial", trial.text()),
            *("--dry-run", "cuda" if dry_run else "off"),
            *command.options,
            *command.words,
        )
        store = _store(command.ranks)
        jobs = [
            Job(words, _of_rank(rank, command, store), os.path.join(home, f"said-{rank}"))
            for rank in range(command.ranks)
        ]
        try:
            ended = fresh.run(jobs, SECONDS + PATIENCE * seconds)
        except KeyboardInterrupt:
            return Rerun(read(file) or Profile(), cut=True)
        return _judged(read(file), jobs, ended)


def _judged(profile: Profile | None, jobs: list[Job], ended: list[tuple[int, int]]) -> Rerun:
    # The first to fail knows why; the others only miss it.
    first, status = next(((number, status) for number, status in ended if status), (0, 0))
    if profile is not None and not status and profile.ended not in ("exception", "interrupted"):
        return Rerun(profile)
    told = "it did not come to its end, and was ended" if status == TIMED_OUT else _last_words(jobs[first].said)
    told = told or f"the process ended with status {status}{'' if profile else ' and no profile'}"
    return Rerun(profile or Profile(), told if not first else f"rank {first}: {told}")


def _last_words(file: str) -> str:
    """The line that names the exception, which may go on below; else the last one."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            lines = [line.rstrip() for line in stream if line.strip()]
    except OSError:
        return ""
    named = [line for line in lines if _RAISED.match(line)]
    return (named or lines or [""])[-1].strip()[:_LONGEST]


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """Sets are ordered the same way in all runs, and this package is found from wherever they are started."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(amp_doctor.__file__)))
    paths = [*filter(None, [given.get("PYTHONPATH")]), home]
    return {"PYTHONHASHSEED": "0", **given, "PYTHONPATH": os.pathsep.join(paths)}


# --- several ranks ----------------------------------------------------------------------------------------------------


def _store(ranks: int) -> TCPStore | None:
    """What the agent of torchrun keeps for its ranks, on a port that is free."""
    if ranks < 2:
        return None
    from torch._C._distributed_c10d import TCPStore

    return TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)


def _of_rank(rank: int, command: Command, store: TCPStore | None) -> dict[str, str]:
    """The environment of a rank, as torchrun makes it for the only node of a job."""
    made = environment_of(command.environment)
    if store is None:
        return made
    numbers = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank)
    numbers |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), command.ranks)
    numbers |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_PORT": store.port, "TORCHELASTIC_RESTART_COUNT": 0}
    made.pop("TORCHELASTIC_ERROR_FILE", None)
    place = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return made | place | {name: str(number) for name, number in numbers.items()}


def unrepeatable(environment: Mapping[str, str]) -> str:
    """Why ranks that others have started cannot be started again from one of them; empty when they can."""
    size = environment.get("WORLD_SIZE", "1")
    for name, launcher in LAUNCHERS.items():
        if environment.get(name, "1") != "1":
            return f"its {environment[name]} ranks were started by {launcher}, which alone can start them again"
    if size == "1":
        return ""
    local = environment.get("LOCAL_WORLD_SIZE")
    if local is not None and local != size:
        return f"its {size} ranks run on several machines, and those of the others cannot be started from this one"
    if local is None and environment.get("MASTER_ADDR", "") not in ("localhost", "127.0.0.1", "::1"):
        return f"whoever started its {size} ranks does not say (LOCAL_WORLD_SIZE) that all are on this machine"
    return ""


def ranks_of(environment: Mapping[str, str]) -> int:
    """How many processes a launcher has started."""
    size = environment.get("WORLD_SIZE", "")
    return int(size) if size.isdigit() and "RANK" in environment else 1
