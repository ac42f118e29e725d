"""What one run of a proof is to be like; importing it loads no torch."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass

# Any would do, as long as all runs have the same.
SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class Trial:
    """`dtype` is that of autocast: float16, bfloat16, float32 for none at all, empty for what the script asks for.

    With `regions` autocast is entered although the script has none. `init_scale` is for the scaler of the script, or
    for a loss scale of ours where it has none; `keep_fp32` names layers that run without autocast. With `widen` what
    the script casts to half stays in float32. With `shaken` the weights are changed in their fourth digit.
    """

    dtype: str = ""
    regions: bool = False
    init_scale: float | None = None
    keep_fp32: tuple[str, ...] = ()
    widen: bool = False
    shaken: bool = False

    @classmethod
    def read(cls, text: str) -> Trial:
        """The trial that `text` stands for."""
        values = json.loads(text)
        return cls(**{**values, "keep_fp32": tuple(values["keep_fp32"])})

    def text(self) -> str:
        """As an option of a command line."""
        return json.dumps(asdict(self))

    @property
    def imposes(self) -> bool:
        """Whether anything is changed about a reduced precision."""
        return self.dtype in ("float16", "bfloat16")


def seed() -> int:
    """The seed of this process; ranks differ, as they would without any."""
    rank = os.environ.get("RANK", "")
    return SEED + (int(rank) if rank.isdigit() else 0)


def seed_numpy() -> None:
    """Seed numpy's global generator; a script that seeds it does so later, and has its own way."""
    sys.modules["numpy"].random.seed(seed())


def seed_python() -> None:
    """Likewise Python's."""
    random.seed(seed())
