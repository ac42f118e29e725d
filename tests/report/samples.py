"""Made-up profiles with something of everything, for the tests of the probe's reports."""

from __future__ import annotations

from dataclasses import replace
from math import erf, sqrt

from amp_doctor.diagnosis.profile import (
    Device,
    FirstNonfinite,
    Layer,
    Memory,
    Operator,
    OptimizerLog,
    Precision,
    Profile,
    ScalerEvent,
    Site,
    Source,
    Steps,
)
from amp_doctor.diagnosis.recommendation import KeepFP32, LossScale, Recommendation
from amp_doctor.finding import Finding, Severity, Span
from amp_doctor.numerics.histogram import ExponentHistogram


def normal(center: int, elements: int = 100_000, zeros: int = 0) -> ExponentHistogram:
    """What N(0, 2^center) holds, in closed form; bins that would hold less than one element are empty."""

    def below(edge: int) -> float:
        return erf(2.0 ** (edge - center) / sqrt(2))

    counts = {e: round(elements * (below(e + 1) - below(e))) for e in range(center - 30, center + 3)}
    counts = {e: count for e, count in counts.items() if count}
    high = 2.0 ** (max(counts) + 1) * 0.75
    return ExponentHistogram(counts, zeros, 0, 0, 0, high, 2.0 ** min(counts), high, -high)


def site(center: int, dtype: str = "float32", **more: int) -> Site:
    return Site(dtype, normal(center, **more))


ENCODER = Layer(
    "encoder.rnn",
    "LSTM",
    Source("model.py", 23),
    1,
    {
        "activation": site(-2),
        "activation_grad": site(-24, zeros=20_000),
        "weight": site(-4, "bfloat16"),
        "weight_grad": site(-22),
        "update": Site("float32", normal(-14), swallowed={"bfloat16": 61_000, "float16": 9_000}),
    },
    {"weight_grad": Site("float16", replace(normal(-21, 90_000), zeros=10_000))},
)
FEED = Layer(
    "decoder.wo",
    "Linear",
    Source("model.py", 41),
    2,
    {
        "activation": Site("float32", replace(normal(15), nan=0)),
        "activation_grad": site(-12),
        "weight_grad": site(-9),
    },
)
HEAD = Layer("head", "Linear", Source("model.py", 57), 3, {"activation": site(1), "weight_grad": site(-8)})
SICK = Profile(
    torch="2.13.0+cpu",
    device=Device("cpu", "", None, False, False),
    command=("train.py", "--epochs", "3"),
    script="train.py",
    mode="auto",
    steps=Steps(50, 50, 47, 3),
    optimizers=(
        OptimizerLog(
            "torch.optim.adamw.AdamW", 50, 47, 3, ("float32",), ("float32",), 1e-8, 3e-4, (0.9, 0.999), 1000, 2000
        ),
    ),
    ended="steps",
    ranks=1,
    seconds=12.34,
    loss=(*(2.5 / (1 + 0.1 * step) for step in range(40)), float("nan"), *(0.5 for _ in range(9))),
    scaler=tuple(
        ScalerEvent(step, 2.0 ** max(16 - step, 13), step < 4, "decoder.wo" if step < 4 else None)
        for step in range(1, 51)
    ),
    layers=(ENCODER, FEED, HEAD),
    operators=(
        Operator("softmax", "encoder.attention", Source("model.py", 30), "O1/float16", "overflow", "float16", 120000.0),
    ),
    first_nonfinite=FirstNonfinite(41, "forward", "decoder.wo", "inf", "linear", Source("model.py", 41)),
    precision=Precision(("float16",), True, ("float32",), True),
    memory=Memory(1000, 2000, 123456, 512, 256),
    notes=("Stopped after 50 steps: what the script does at its end was not run.",),
)
PLACE = Span(41, 1, 41, 2)
FINDINGS = (
    Finding(
        "AMP605",
        "activation-overflow",
        Severity.ERROR,
        "the output of decoder.wo reaches 98304; float16 ends at 65504, and no loss scale helps a forward pass",
        "model.py",
        PLACE,
        layer="decoder.wo",
    ),
    Finding(
        "AMP601",
        "gradients-lost-in-half",
        Severity.WARNING,
        "41% of the non-zero gradients are rounded to zero in float16 at scale 1, 0.1% at 8192",
        "model.py",
        Span(23, 1, 23, 2),
        layer="encoder.rnn",
    ),
)
ADVICE = Recommendation(
    "float16",
    "O1",
    LossScale(True, 8192.0, (1024.0, 65536.0)),
    (KeepFP32("decoder.wo", "its output reaches 98304, beyond 65504"),),
    {"O0": 19_000_000, "O1": 14_500_000, "O2": 15_100_000, "O3": 8_000_000},
    {
        "expectation": "none on this CPU; 1.5 to 3 times on a GPU with Tensor Cores",
        "reason": "matrix products take most of the time",
    },
    "medium",
    (
        "gradients of encoder.rnn lie around 2^-24, where float16 rounds to zero, and a scale of 1024 brings them back",
        "the largest gradient, 0.75 in head, leaves a factor 8 below overflow at 8192",
    ),
    ("50 early steps: gradients shrink later in training, and activations may grow",),
    'scaler = torch.amp.GradScaler("cuda", init_scale=8192.0)\n\nwith torch.autocast("cuda", dtype=torch.float16):\n    loss = ...\n',
)
