"""A precision that does not suit the machine or the scaler: AMP614, AMP615."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.registry import Draft, symptom

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.facts import Facts


@symptom("AMP614")
def emulated_bfloat16(facts: Facts) -> Iterable[Draft]:
    """torch computes BF16 on older GPUs by detours, and says that it is supported."""
    device = facts.profile.device
    if device.kind == "cuda" and facts.use.bfloat16 and not device.native_bf16:
        capability = ".".join(map(str, device.capability)) if device.capability else "unknown"
        yield Draft(
            None,
            f"BF16 is emulated on this GPU ({device.name or 'CUDA'}, compute capability {capability}; native from "
            "8.0): it is slower than FP32, use FP16 with a GradScaler",
        )


@symptom("AMP615")
def scaler_without_float16(facts: Facts) -> Iterable[Draft]:
    """Only on a GPU: on another machine a script often runs as a stand-in of what it is meant for."""
    profile = facts.profile
    if profile.device.kind == "cuda" and profile.precision.scaler and not facts.use.float16:
        runs = "BF16, which has the range of FP32," if facts.use.bfloat16 else "FP32"
        yield Draft(None, f"a GradScaler scales the loss, but the model runs in {runs} and needs none")
