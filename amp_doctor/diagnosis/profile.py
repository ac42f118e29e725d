"""What a probed run has seen, as a value: it merges over steps and ranks, and goes to JSON and back.

`a + b` is associative and commutative (losses up to rounding, and where all saw the same number of steps), and
`Profile()` is its zero. All magnitudes are in true units: a gradient seen under a loss scale of 2^k is filed as if the
scale had been 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from amp_doctor.numerics.histogram import ExponentHistogram

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTIVATION = "activation"
ACTIVATION_GRAD = "activation_grad"
WEIGHT = "weight"
WEIGHT_GRAD = "weight_grad"
UPDATE = "update"
ROLES = (ACTIVATION, ACTIVATION_GRAD, WEIGHT, WEIGHT_GRAD, UPDATE)
GRADIENTS = (ACTIVATION_GRAD, WEIGHT_GRAD)
# The loss scales for which a profile says what gradients lose.
LOSS_SCALES = (1, 8, 128, 1024, 65536)

BACKWARD, STEP, RAISED, CLIPPED = "backward", "step", "raised", "clipped"

# How a run ended, the worse the later; a merge keeps the worse.
ENDS = ("", "steps", "finished", "time-limit", "interrupted", "exception")
# Where a value was met, in the order in which a step meets them.
PHASES = ("weight", "forward", "loss", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code; `path` as Python knows it, `line` from 1."""

    path: str
    line: int


@dataclass(frozen=True, slots=True)
class Site:
    """One role of one layer: what was counted, in true units.

    `dtype` is the one the tensors had; `sampled` says that not every element of every step was counted.
    `swallowed` (role update) maps a format to the number of non-zero updates that leave a weight of that format
    unchanged. `as_at` (gradients) maps a loss scale to the one at which a cast to float16 loses as much as replayed
    steps lost under it, whose gradients are made of others in float16: 0 is everything, infinity nothing.
    """

    dtype: str = ""
    histogram: ExponentHistogram = field(default_factory=ExponentHistogram)
    sampled: bool = False
    swallowed: Mapping[str, int] = field(default_factory=dict)
    as_at: Mapping[float, float] = field(default_factory=dict)

    def __add__(self, other: Site) -> Site:
        return Site(
            _widest(self.dtype, other.dtype),
            self.histogram + other.histogram,
            self.sampled or other.sampled,
            {
                name: self.swallowed.get(name, 0) + other.swallowed.get(name, 0)
                for name in sorted({*self.swallowed, *other.swallowed})
            },
            {
                scale: min(one.as_at[scale] for one in (self, other) if scale in one.as_at)
                for scale in sorted({*self.as_at, *other.as_at})
            },
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """A module, by its name in the model; `type` is its class, `order` that of the first forward pass.

    `sites` holds the distribution as well as it could be learned: the calibrated one where there is one. `observed`
    holds what was seen in reduced precision after calibration (mode auto), and is empty otherwise; the two are never
    added. `buffers` maps the floating-point buffers of the module to their dtypes.
    """

    name: str
    type: str = ""
    source: Source | None = None
    order: int = 0
    sites: Mapping[str, Site] = field(default_factory=dict)
    observed: Mapping[str, Site] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Layer) -> Layer:
        first = min(self, other, key=lambda layer: (layer.order, layer.type))
        return replace(
            first,
            source=first.source or self.source or other.source,
            sites=_added(self.sites, other.sites),
            observed=_added(self.observed, other.observed),
            buffers={**other.buffers, **self.buffers},
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """A torch call outside the modules of torch.nn whose result leaves a format (DESIGN section 6).

    `amax` is the largest magnitude of its result, in true units; `trouble` is overflow, underflow, precision,
    accumulation (a sum over many elements that overflows or stops growing in half), collapse (whole numbers, one after
    the other, that half cannot tell apart: `lost` is the share that equals its neighbour), mask (infinities that hide
    what they are meant to), banned by autocast, unsupported in half, or mixed (half meets FP32, which the operator
    refuses); `lost`, `error`, `flops` and `casts` stay 0 until the step is replayed. In the phase backward, `amax`,
    `lost` and `error` are of the gradients that the operator's backward computes.
    """

    operator: str
    layer: str
    source: Source | None = None
    precision: str = ""
    trouble: str = ""
    dtype: str = ""
    amax: float = 0.0
    lost: float = 0.0
    error: float = 0.0
    flops: int = 0
    casts: int = 0
    phase: str = "forward"


@dataclass(frozen=True, slots=True)
class Steps:
    """Attempts of the leading optimizer (probe/steps.py); attempted = taken + skipped."""

    requested: int = 0
    attempted: int = 0
    taken: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerLog:
    """One optimizer: its attempts and the numbers its arithmetic rests on.

    `dtypes` are those of its parameters, `state_dtypes` those of its floating-point state tensors, `eps` and `lr` those
    of its first group (None when it has none). `second_moment` counts the state that `eps` is added to.
    """

    name: str
    attempted: int = 0
    taken: int = 0
    skipped: int = 0
    dtypes: tuple[str, ...] = ()
    state_dtypes: tuple[str, ...] = ()
    eps: float | None = None
    lr: float | None = None
    betas: tuple[float, ...] = ()
    parameters: int = 0
    state_elements: int = 0
    second_moment: Site | None = None


@dataclass(frozen=True, slots=True)
class ScalerEvent:
    """A `GradScaler.step`: the scale in force and whether it met an infinity; `layer` is where the first was seen."""

    step: int
    scale: float
    found_inf: bool
    layer: str | None = None


@dataclass(frozen=True, slots=True)
class FirstNonfinite:
    """The first NaN or infinity that was not expected: an attention mask or a skipped step is none.

    `step` counts attempts from 1; 0 is before the first. `phase` is one of PHASES, `value` nan or inf.
    """

    step: int
    phase: str
    layer: str
    value: str = "nan"
    operator: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """Where the model ran. `capability` is that of CUDA; `native_bf16` excludes emulation.

    `why` says where the script sets up AMP for CUDA, when it was emulated for that and nobody had asked for it.
    """

    kind: str = ""
    name: str = ""
    capability: tuple[int, int] | None = None
    native_bf16: bool = False
    emulated: bool = False
    why: str = ""


# What a dry run stands for: any GPU with Tensor Cores.
EMULATED = Device("cuda", "", None, True, True)


@dataclass(frozen=True, slots=True)
class Precision:
    """What the script itself asked for: autocast dtypes it entered, whether a GradScaler scaled, dtypes of the weights.

    `calibrated` says that the first steps ran with autocast widened and the scaler passed through.
    """

    autocast: tuple[str, ...] = ()
    scaler: bool = False
    weights: tuple[str, ...] = ()
    calibrated: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Elements, of one rank: trained parameters, optimizer state, and tensors saved for backward in one forward pass.

    `saved_bytes` are as they ran, parameters and inputs excluded; None when they were not measured.
    `widest` is the largest dimension that a matrix product of the model contracts, `largest` its largest parameter.
    """

    parameters: int = 0
    state_elements: int = 0
    saved_bytes: int | None = None
    widest: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recorded step under one precision ("O1/float16"...), against FP32: relative errors of loss and gradients.

    Infinities are mended where they arise: the errors are those of the rest. `gradient_error` is None when the backward
    pass was not replayed; `overflows` counts the operators whose result overflows, `casts` those to or from half;
    `loss_scale` is the one the backward pass ran under; `half_loss` the largest gradient of a loss that is float16.
    """

    precision: str
    loss_error: float = 0.0
    gradient_error: float | None = None
    overflows: int = 0
    casts: int = 0
    loss_scale: float = 1.0
    half_loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    """One recorded step under O1 in float16, against FP32: relative errors, and what it would bring.

    `tensor_cores` is the share of the FLOPs that are half products, `aligned` the share of those whose dimensions are
    multiples of 8; `speed` maps a GPU to the ends of the speed-up, under `assumptions`. `keep` names the operators that
    must stay in FP32, as found by trying. `exact`: whether the recorded step, run again in FP32, gave the same bits
    (None: not checked). `activations` maps an opt level (O0 to O3) to the bytes of all results of the forward pass.
    `outcomes` sets the precisions side by side. `lines` are those of the user's code whose operators the step ran.
    When no step was recorded and replayed, `recorded` is False and `reason` says why.
    """

    loss_error: float = 0.0
    gradient_error: float = 0.0
    casts: int = 0
    flops: int = 0
    tensor_cores: float = 0.0
    aligned: float = 0.0
    speed: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    assumptions: str = ""
    keep: tuple[str, ...] = ()
    exact: bool | None = None
    activations: Mapping[str, int] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    recorded: bool = True
    reason: str = ""
    lines: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything a probed run has seen; see DESIGN section 6 for the JSON.

    `places` are the lines of the user's own code that start a backward pass (BACKWARD), step an optimizer (STEP), clip
    gradients that still carry the loss scale (CLIPPED), and have raised the error that ended the run (RAISED).
    """

    torch: str = ""
    device: Device = field(default_factory=Device)
    command: tuple[str, ...] = ()
    script: str = ""
    mode: str = ""
    steps: Steps = field(default_factory=Steps)
    optimizers: tuple[OptimizerLog, ...] = ()
    ended: str = ""
    ranks: int = 0
    seconds: float = 0.0
    loss: tuple[float, ...] = ()
    scaler: tuple[ScalerEvent, ...] = ()
    layers: tuple[Layer, ...] = ()
    operators: tuple[Operator, ...] = ()
    first_nonfinite: FirstNonfinite | None = None
    precision: Precision = field(default_factory=Precision)
    memory: Memory = field(default_factory=Memory)
    notes: tuple[str, ...] = ()
    replay: Replay | None = None
    places: Mapping[str, Source] = field(default_factory=dict)

    def __add__(self, other: Profile) -> Profile:
        from amp_doctor.diagnosis.merge import merged

        return merged(self, other)


def _widest(a: str, b: str) -> str:
    order = ("", "float16", "bfloat16", "float32", "float64")
    return max(a, b, key=lambda name: (order.index(name) if name in order else -1, name))


def _added(a: Mapping[str, Site], b: Mapping[str, Site]) -> dict[str, Site]:
    return {role: a.get(role, Site()) + b.get(role, Site()) for role in ROLES if role in a or role in b}
