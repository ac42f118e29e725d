"""What a probe was asked to do, and the exception that ends the probed script; importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amp_doctor.diagnosis.profile import EMULATED, Device

AUTO = "auto"
OBSERVE = "observe"
CALIBRATE = "calibrate"
MODES = (AUTO, OBSERVE, CALIBRATE)


@dataclass(frozen=True, slots=True)
class Settings:
    """`steps` optimizer steps are attempted; every `every`-th is counted; `layers` is a glob over layer names.

    `time_limit` is in seconds from the start of the script. `dry_run`: what asks for CUDA runs on the CPU, under CUDA's
    rules. `cuda_amp` says where the script sets up AMP for CUDA: a dry run starts for that where there is no GPU.
    `script` and `command` are only recorded. `trial` is empty, or a Trial as text: this run is one of a proof.
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
    cuda_amp: str = ""

    @property
    def emulated(self) -> Device:
        """What a dry run stands for, and why there is one."""
        return replace(EMULATED, why=self.cuda_amp)


class Stop(BaseException):
    """Ends the probed script after the last step; a BaseException, so that `except Exception` does not swallow it."""
