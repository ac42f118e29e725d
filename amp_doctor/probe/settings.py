"""What a probe was asked to do, and the exception that ends the probed script; importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

AUTO = "auto"
OBSERVE = "observe"
CALIBRATE = "calibrate"
MODES = (AUTO, OBSERVE, CALIBRATE)


@dataclass(frozen=True, slots=True)
class Settings:
    """`steps` optimizer steps are attempted; every `every`-th is counted; `layers` is a glob over layer names.

    `time_limit` is in seconds from the start of the script. `dry_run`: what asks for CUDA runs on the CPU, under CUDA's
    rules. `script` and `command` are only recorded. `trial` is empty, or a Trial as text: this run is one of a proof.
    """

    steps: int = 50
    mode: str = AUTO
    every: int = 1
    layers: str | None = None
    time_limit: float | None = None
    dry_run: bool = False
    script: str = ""
    command: tuple[str, ...] = ()
    trial: str = ""


class Stop(BaseException):
    """Ends the probed script after the last step; a BaseException, so that `except Exception` does not swallow it."""
