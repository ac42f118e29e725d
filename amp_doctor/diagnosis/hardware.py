"""What the machine makes of a reduced precision, as one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Device, Profile

# Below these a step waits for launches, not for arithmetic.
SMALL_PRODUCT = 256
SMALL_MODEL = 1_000_000

# What rounds to 1.0x is no gain.
NO_MORE_THAN = 1.05
UNMEASURED = "an estimate that nobody has measured on a GPU"
NO_GAIN = "do not expect a speed-up from autocast here"


@dataclass(frozen=True, slots=True)
class Machine:
    """`float16` and `bfloat16`: worth using here. `known`: a GPU was seen; else the advice is for one unseen."""

    name: str
    float16: bool
    bfloat16: bool
    known: bool
    expectation: str
    reason: str


def machine(device: Device) -> Machine:
    """What is known of a device. FP16 Tensor Cores begin at capability 7.0, native BF16 at 8.0."""
    name = device.name or device.kind or "unknown"
    if device.kind != "cuda" or device.emulated:
        emulated = device.kind == "cpu" and not device.native_bf16
        reason = (
            "reduced precision is emulated on this CPU and slower than FP32; the advice is for a GPU"
            if emulated
            else "not measured on a GPU; Tensor Cores (compute capability 7.0 and later) make large products faster"
        )
        return Machine(name, True, True, False, "slower here" if emulated else "depends on the GPU", reason)
    capability = device.capability or (0, 0)
    if capability < (7, 0) or "GTX 16" in device.name:
        return Machine(
            name, False, False, True, "none", f"{name} has no Tensor Cores: FP16 is not faster than FP32 there"
        )
    if device.native_bf16:
        reason = f"{name} has Tensor Cores for FP16 and BF16; the larger the matrix products the more they gain"
        return Machine(name, True, True, True, "1.2 to 3 times faster", reason)
    reason = f"{name} has Tensor Cores for FP16 and only emulates BF16"
    return Machine(name, True, False, True, "1.2 to 3 times faster", reason)


def gains_nothing(profile: Profile) -> bool:
    """Whether even the upper ends of the ranges that a replayed step gives are no gain."""
    replay = profile.replay
    return replay is not None and bool(replay.speed) and max(high for _, high in replay.speed.values()) < NO_MORE_THAN


def speed(profile: Profile) -> dict[str, str]:
    """What to expect of reduced precision, in words, and why; a replayed step gives ranges per GPU as well."""
    return {**_expected(profile), **_estimated(profile)}


def estimate(profile: Profile) -> str:
    """The ranges that a replayed step gives per GPU, after a warning where even their upper ends are no gain."""
    ranges = profile.replay.speed.items() if profile.replay is not None else ()
    told = ", ".join(f"{gpu} {low:.1f}x to {high:.1f}x" for gpu, (low, high) in ranges)
    return f"{f'{NO_GAIN}: ' if gains_nothing(profile) else ''}under O1 {told}"


def _estimated(profile: Profile) -> dict[str, str]:
    replay = profile.replay
    if replay is None or not replay.flops or not replay.speed:
        return {}
    shares = f"{100 * replay.tensor_cores:.0f} % of the FLOPs on Tensor Cores"
    slow = f", {100 * (1 - replay.aligned):.0f} % of those off the multiples of 8" if replay.aligned < 0.995 else ""
    told = f"{estimate(profile)}; {shares}{slow}, {replay.casts} casts; {UNMEASURED}: {replay.assumptions}"
    return {"replayed": told}


def _expected(profile: Profile) -> dict[str, str]:
    here = machine(profile.device)
    size = profile.memory
    small = 0 < size.parameters < SMALL_MODEL and 0 < size.widest < SMALL_PRODUCT
    if small and here.expectation != "none":
        reason = (
            f"small: {size.parameters:,} parameters, the longest product contracts {size.widest} elements; such a step "
            "waits for launches, and casts add some"
        )
        return {
            "expectation": "little or none" if here.known else here.expectation,
            "reason": reason if here.known else f"{here.reason}; the model is {reason}",
        }
    return {"expectation": here.expectation, "reason": here.reason}
