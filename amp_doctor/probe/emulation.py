"""A dry run that nobody asked for, on a machine without a GPU, for a script that sets up AMP for CUDA."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_doctor.probe.programs import RANK_VARIABLES

if TYPE_CHECKING:
    from amp_doctor.probe.settings import Settings

STARTED = (
    "CUDA is emulated on the CPU, as there is no GPU here and the script sets up AMP for one ({}); "
    "--dry-run off runs it plainly"
)
FAILED = "the script failed while CUDA was emulated, which nobody had asked for: --dry-run off runs it plainly"
AS_ON_A_GPU = "the script failed under the emulated CUDA as it would on a GPU; --dry-run off runs it without"

# What a script fails with on a GPU as well.
INNOCENT = (ImportError, SyntaxError, FileNotFoundError, SystemExit)


def settled(settings: Settings) -> Settings:
    """The same with `dry_run` decided; torch is there, and has not begun CUDA."""
    if settings.dry_run or not settings.cuda_amp:
        return settings
    from amp_doctor.probe.device import has_accelerator

    return settings if has_accelerator() else replace(settings, dry_run=True)


def say(text: str) -> None:
    """On stderr, once for all ranks."""
    if all(os.environ.get(name, "0") == "0" for name in RANK_VARIABLES):
        sys.stderr.write(f"amp-doctor: {text}\n")
        sys.stderr.flush()
