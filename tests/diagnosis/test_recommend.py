"""dtype, opt level, memory, speed, confidence and the snippet, machine by machine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from amp_doctor.diagnosis.profile import Device, Memory, Precision, Profile, Steps
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.recommendation import to_values
from amp_doctor.diagnosis.symptoms import findings
from tests.conftest import lint_text
from tests.diagnosis.miniature import miniature
from tests.diagnosis.strategies import profiles

CPU = Device("cpu", "a CPU")
P100 = Device("cuda", "Tesla P100", (6, 0))
T4 = Device("cuda", "Tesla T4", (7, 5))
GTX = Device("cuda", "NVIDIA GeForce GTX 1660 Ti", (7, 5))
H200 = Device("cuda", "NVIDIA H200", (9, 0), native_bf16=True)
MPS = Device("mps", "Apple M3")
HALF = Precision(("float16",), True, ("float32",), calibrated=True)

HEALTHY = miniature(
    """
    [[site]]
    layer = "fc1"
    type = "Linear"
    role = "activation"
    exponents = { -3 = 500, 2 = 500 }
    [[site]]
    layer = "fc1"
    role = "activation_grad"
    exponents = { -20 = 500, -9 = 500 }
    [[site]]
    layer = "fc2"
    type = "Linear"
    role = "activation_grad"
    exponents = { -20 = 500, -9 = 500 }
    """
)
OVERFLOWING = miniature(
    """
    [[site]]
    layer = "fc1"
    type = "Linear"
    role = "activation"
    exponents = { -3 = 500, 17 = 500 }
    [[site]]
    layer = "fc1"
    role = "activation_grad"
    exponents = { -20 = 500, -9 = 500 }
    [[site]]
    layer = "act"
    type = "GELU"
    role = "activation"
    exponents = { -3 = 500, 17 = 500 }
    [[site]]
    layer = "fc2"
    type = "Linear"
    role = "activation"
    exponents = { -3 = 500 }
    [[site]]
    layer = "norm"
    type = "LayerNorm"
    role = "activation"
    exponents = { -3 = 500, 17 = 500 }
    """
)


@pytest.mark.parametrize(
    ("device", "healthy", "overflowing"),
    [
        (CPU, "float16", "bfloat16"),
        (MPS, "float16", "bfloat16"),
        (Device(), "float16", "bfloat16"),
        (P100, "float32", "float32"),
        (GTX, "float32", "float32"),
        (T4, "float16", "float16"),
        (H200, "bfloat16", "bfloat16"),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else value,
)
def test_the_machine_counts(device: Device, healthy: str, overflowing: str) -> None:
    for profile, dtype in ((HEALTHY, healthy), (OVERFLOWING, overflowing)):
        found = recommend(replace(profile, device=device))
        assert found.dtype == dtype
        assert found.opt_level == ("O0" if dtype == "float32" else "O1")


def test_what_runs_well_in_half_stays_as_it_is() -> None:
    assert recommend(replace(HEALTHY, device=H200, precision=HALF)).dtype == "float16"
    assert recommend(replace(OVERFLOWING, device=H200, precision=HALF)).dtype == "bfloat16"
    wide = replace(HEALTHY, precision=Precision(("bfloat16",), False, ("float32",), calibrated=True))
    assert recommend(replace(wide, device=CPU)).reasons[0].startswith("the script runs in BF16 already")
    assert recommend(replace(wide, device=T4)).dtype == "float16"


def test_layers_that_overflow_and_who_reads_them_stay_in_float32() -> None:
    found = recommend(replace(OVERFLOWING, device=T4))
    assert {one.layer for one in found.keep_fp32} == {"fc1", "act", "fc2"}
    assert "reaches 196,608; FP16 ends at 65504" in found.keep_fp32[0].reason
    assert "enabled=False" in found.snippet
    assert '"fc1"' in found.snippet


def test_without_gradients_nothing_is_said() -> None:
    found = recommend(Profile())
    assert (found.dtype, found.opt_level, found.confidence) == ("float32", "O0", "low")
    assert found.loss_scale.admissible is None
    assert findings(Profile()) == []


def test_a_run_that_breaks_in_float32_is_to_be_mended_first() -> None:
    broken = miniature("[first_nonfinite]\nstep = 1\nphase = 'forward'\nlayer = 'fc1'\n")
    found = recommend(replace(HEALTHY, first_nonfinite=broken.first_nonfinite))
    assert found.dtype == "float32"
    assert "without any reduced precision" in found.reasons[0]


def test_memory_per_opt_level_is_the_measured_table() -> None:
    adam = replace(HEALTHY, memory=Memory(parameters=1000, state_elements=2000))
    assert recommend(adam).memory == {"O0": 16_000, "O1": 16_000, "O2": 16_000, "O3": 8_000}
    sgd = replace(HEALTHY, memory=Memory(parameters=1000, state_elements=1000))
    assert recommend(sgd).memory == {"O0": 12_000, "O1": 12_000, "O2": 12_000, "O3": 6_000}
    saved = replace(HEALTHY, memory=Memory(parameters=1000, saved_bytes=100_000))
    assert recommend(saved).memory == {"O0": 108_000, "O1": 73_000, "O2": 58_000, "O3": 54_000}
    # Measured under autocast, the same tensors were larger in float32.
    under = replace(saved, memory=Memory(1000, 0, 65_000), precision=Precision(("float16",), True, ("float32",)))
    assert recommend(under).memory == recommend(saved).memory
    # A dry run computes, and saves, in float32.
    emulated = replace(under, memory=saved.memory, device=Device("cuda", "", None, True, True))
    assert recommend(emulated).memory == recommend(saved).memory
    assert recommend(HEALTHY).memory == {}


def test_small_models_gain_nothing_and_a_cpu_says_what_it_is() -> None:
    small = replace(HEALTHY, memory=Memory(parameters=5000, widest=64, largest=4096), device=T4)
    assert recommend(small).speed["expectation"] == "little or none"
    assert "64 elements" in recommend(small).speed["reason"]
    large = replace(small, memory=Memory(parameters=50_000_000, widest=4096, largest=4096 * 4096))
    assert recommend(large).speed["expectation"] == "1.2 to 3 times faster"
    assert "emulated on this CPU" in recommend(replace(large, device=CPU)).speed["reason"]
    assert recommend(replace(large, device=GTX)).speed["expectation"] == "none"
    emulated = recommend(replace(large, device=Device("cuda", "", None, True, True))).speed
    assert emulated["expectation"] == "depends on the GPU"
    assert emulated["reason"].startswith("not measured on a GPU")


def test_confidence_is_that_of_the_look() -> None:
    assert recommend(HEALTHY).confidence == "medium"
    assert recommend(replace(HEALTHY, steps=Steps(50, 50, 50, 0))).confidence == "high"
    assert recommend(replace(HEALTHY, steps=Steps(5, 5, 5, 0))).confidence == "low"
    observed = replace(HEALTHY, mode="observe", precision=replace(HALF, calibrated=False))
    assert recommend(observed).confidence == "low"
    assert any("--mode calibrate" in words for words in recommend(observed).would_change)


def test_updates_that_cast_weights_would_swallow_are_told() -> None:
    told = miniature(
        """
        [[site]]
        layer = "fc"
        role = "weight"
        exponents = { -4 = 10 }
        [[site]]
        layer = "fc"
        role = "update"
        exponents = { -14 = 100 }
        swallowed = { bfloat16 = 80, float16 = 10 }
        [[site]]
        layer = "fc"
        role = "weight_grad"
        exponents = { -9 = 10 }
        """
    )
    assert "weights cast to half (O3) would swallow 80.0 % of the updates in BF16, 10.0 % in FP16: keep FP32" in (
        recommend(told).reasons
    )


AROUND = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential()
model.add_module("fc1", torch.nn.Linear(4, 8))
model.add_module("act", torch.nn.GELU())
model.add_module("fc2", torch.nn.Linear(8, 2))
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(3, 4), torch.randn(3, 2)) for _ in range(40)]
before = [p.detach().clone() for p in model.parameters()]
"""


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("profile", [HEALTHY, OVERFLOWING], ids=["healthy", "overflowing"])
@pytest.mark.parametrize("device", [CPU, P100, T4, H200], ids=lambda device: device.name)
def test_the_snippet_trains(device: Device, profile: Profile, weights: str) -> None:
    found = recommend(replace(profile, device=device, precision=Precision(weights=(weights,))))
    namespace: dict[str, object] = {}
    # On this machine, where CUDA is not.
    exec(AROUND + found.snippet.replace('"cuda"', '"cpu"'), namespace)
    model = namespace["model"]
    assert isinstance(model, torch.nn.Module)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    moved = [not torch.equal(old, new) for old, new in zip(namespace["before"], model.parameters(), strict=True)]  # type: ignore[call-overload]
    assert all(moved)


@pytest.mark.parametrize("profile", [HEALTHY, OVERFLOWING], ids=["healthy", "overflowing"])
@pytest.mark.parametrize("device", [CPU, P100, T4, H200], ids=lambda device: device.name)
def test_our_own_linter_likes_the_snippet(device: Device, profile: Profile) -> None:
    text = recommend(replace(profile, device=device)).snippet
    assert [(finding.code, finding.message) for finding in lint_text(AROUND + text)] == []


@given(profiles())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_profile_gets_a_verdict_that_holds_together(profile: Profile) -> None:
    found = recommend(profile)
    json.dumps(to_values(found), allow_nan=False)
    compile(found.snippet, "snippet.py", "exec")
    assert found.dtype in ("float16", "bfloat16", "float32")
    assert found.opt_level == ("O0" if found.dtype == "float32" else "O1")
    scale = found.loss_scale
    assert (scale.admissible is None) == (scale.init_scale is None)
    if scale.admissible is not None and scale.init_scale is not None:
        low, high = scale.admissible
        assert 1 <= low <= scale.init_scale <= high
        assert scale.needed == (low > 1)
    known = {layer.name for layer in profile.layers} | {one.layer for one in profile.operators}
    assert {one.layer for one in found.keep_fp32} <= known
    assert found.reasons
    assert len({one.name for one in found.keep_fp32}) == len(found.keep_fp32)


@given(profiles())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_profile_gets_findings_worst_first(profile: Profile) -> None:
    found = findings(profile)
    ranks = [finding.severity.rank for finding in found]
    assert ranks == sorted(ranks, reverse=True)
    known = {layer.name for layer in profile.layers} | {one.layer for one in profile.operators}
    if profile.first_nonfinite is not None:
        known.add(profile.first_nonfinite.layer)
    known |= {event.layer for event in profile.scaler if event.layer}
    for finding in found:
        assert finding.code.startswith("AMP6")
        assert finding.layer is None or finding.layer in known
        assert "\n" not in finding.message
        assert finding.span.line >= 1
    assert len({(finding.code, finding.layer) for finding in found}) == len(found) or any(
        finding.layer is None for finding in found
    )
