"""What the machine computes natively; emulation is never taken for support."""

from __future__ import annotations

import platform

import torch

from amp_doctor.diagnosis.profile import EMULATED, Device

# The dry runs that are on: what is probed inside one is said to be emulated, whoever began it.
dry_runs: list[object] = []


def describe(device: torch.device | None) -> Device:
    """The device that the first parameters met lie on; the CPU when there are none."""
    if dry_runs:
        return EMULATED
    if device is not None and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        # `torch.cuda.is_bf16_supported()` says yes on a T4 by default: it counts emulation.
        return Device(
            "cuda", name, (capability[0], capability[1]), capability >= (8, 0) or torch.version.hip is not None
        )
    if device is not None and device.type != "cpu":
        return Device(device.type, device.type)
    return Device("cpu", platform.processor() or platform.machine(), None, _cpu_bf16())


def has_accelerator() -> bool:
    """Whether there is a GPU of any kind, or another accelerator; CUDA is not begun, so that processes can fork."""
    if torch.cuda.device_count():
        return True
    other = getattr(torch, "accelerator", None)
    if other is not None and hasattr(other, "is_available"):
        return bool(other.is_available())
    return torch.backends.mps.is_available() or torch.xpu.is_available()


def _cpu_bf16() -> bool:
    """AVX512-BF16 or AMX; the looser test of oneDNN also passes where bfloat16 is emulated."""
    tests = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(test() for test in tests if test is not None)
