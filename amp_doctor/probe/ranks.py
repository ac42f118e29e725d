"""Several processes of one job (torchrun): their profiles meet on rank 0, through the store of the process group.

A store needs no collective: it is there when a rank has died, when the script has destroyed its process group, and on
every backend.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.serial import from_values, to_values
from amp_doctor.errors import ProfileError

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile

# Seconds to wait for the others: after a stop, and after a failure, when they may never come.
TIMEOUT = 60.0
SHORT = 5.0
PREFIX = "amp-doctor/"


class Ranks:
    """This process among the others; `look` as early and as often as you like."""

    def __init__(self) -> None:
        told = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
        self.rank, self.size = (int(told[0]), int(told[1])) if all(one.isdigit() for one in told) else (0, 1)
        self._store: Any = None

    def look(self) -> None:
        """Take hold of the process group's store, once there is one; it outlives the group."""
        if self._store is not None:
            return
        dist = _distributed()
        if dist is not None:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            with suppress(AttributeError, RuntimeError, ValueError):
                self._store = dist.distributed_c10d._get_default_store()

    def merged(self, profile: Profile, patience: float) -> tuple[Profile, list[int]] | None:
        """On rank 0 the sum over the ranks that came in time, and those that did not; None on the others."""
        self.look()
        if self.size < 2:
            return profile, []
        store = self._store or self._agent_store()
        if store is None:
            return (profile, list(range(1, self.size))) if self.rank == 0 else None
        if self.rank:
            with suppress(RuntimeError):  # rank 0 has died
                store.set(f"{PREFIX}{self.rank}", zlib.compress(json.dumps(to_values(profile)).encode()))
            return None
        return self._collected(store, profile, time.monotonic() + patience)

    def _collected(self, store: Any, profile: Profile, until: float) -> tuple[Profile, list[int]]:
        missing = set(range(1, self.size))
        while True:
            for rank in sorted(missing):
                try:
                    if store.check([f"{PREFIX}{rank}"]):
                        values = json.loads(zlib.decompress(store.get(f"{PREFIX}{rank}")))
                        profile += from_values(values, f"rank {rank}")
                        missing.discard(rank)
                except (RuntimeError, ValueError, zlib.error, ProfileError):
                    until = 0.0
            if not missing or time.monotonic() >= until:
                return profile, sorted(missing)
            time.sleep(0.05)

    def _agent_store(self) -> Any:
        """The store of torchrun itself, for a script without a process group; where it has none, rank 0 has one."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        # As in releases such as torch 2.4, and as torch's own rendezvous would do.
        hosts = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = torch.distributed.TCPStore(
                host, port, self.size, hosts, timedelta(seconds=SHORT), wait_for_workers=False
            )
            return torch.distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        except (KeyError, ValueError, RuntimeError, AttributeError):
            return None

    def leave(self, patience: float) -> bool:
        """Take down the process group that a stopped script has left behind, all ranks together.

        False when the others did not come: then its teardown may abort the process, or wait for them.
        """
        dist = _distributed()
        if dist is None:
            return True
        self.look()
        until = time.monotonic() + patience
        try:
            self._store.add(f"{PREFIX}leaving", 1)
            if not self._counted("leaving", self.size, until):
                return False
            # Rank 0 may be the host of the store: it goes last.
            if self.rank:
                self._store.add(f"{PREFIX}left", 1)
            else:
                self._counted("left", self.size - 1, until)
            dist.destroy_process_group()
        except (RuntimeError, ValueError, AttributeError):
            return False
        return True

    def _counted(self, key: str, wanted: int, until: float) -> bool:
        while self._store.add(f"{PREFIX}{key}", 0) < wanted:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True


def _distributed() -> Any:
    """torch.distributed when the script has initialised it, else None."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
