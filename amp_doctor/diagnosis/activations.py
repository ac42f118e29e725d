"""Which layer outputs CUDA's autocast makes half, and how far they reach: overflow, and what only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.gradients import is_loss
from amp_doctor.diagnosis.precision import HALF, any_half
from amp_doctor.diagnosis.profile import ACTIVATION, Layer, Profile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.diagnosis.precision import InUse
    from amp_doctor.numerics.histogram import ExponentHistogram

# Classes whose result autocast on CUDA keeps in float32 (torch 2.13, ATen/autocast_mode.h, the fp32 lists); an
# embedding follows its float32 table, a bilinear form is promoted to its float32 weights.
_FLOAT32 = frozenset(
    "LayerNorm GroupNorm RMSNorm Softmax LogSoftmax Softmin Softmax2d AdaptiveLogSoftmaxWithLoss Softplus "
    "CosineSimilarity PairwiseDistance Bilinear Upsample UpsamplingNearest2d UpsamplingBilinear2d Embedding "
    "EmbeddingBag".split()
)
_FLOAT32_ENDINGS = ("LayerNorm", "RMSNorm", "GroupNorm", "Embedding", "Loss")
# Classes whose result it makes half: the matrix products of the lower_precision_fp list.
_HALF_STARTS = ("Linear", "Conv", "LazyConv", "LazyLinear", "RNN", "LSTM", "GRU", "MultiheadAttention")
_HALF_ENDINGS = ("Linear", "Attention", "PReLU")
# Classes of torch.nn that compute in whatever arrives: half behind a matrix product, float32 behind a norm.
_FOLLOWS = frozenset(
    "ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Hardtanh Hardswish Hardsigmoid LogSigmoid Softsign "
    "Tanhshrink Threshold GLU Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout Identity Flatten "
    "Unflatten BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "LocalResponseNorm MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d "
    "AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d PixelShuffle "
    "PixelUnshuffle ChannelShuffle ZeroPad1d ZeroPad2d ZeroPad3d ReflectionPad1d ReflectionPad2d ReplicationPad2d "
    "ConstantPad1d ConstantPad2d Fold Unfold NewGELUActivation GELUActivation DropPath".split()
)
# An attention mask is this many powers of two above everything else, and negative.
_MASK_GAP = 6


def float32_under_autocast(layer: Layer) -> bool:
    """True for a class on torch's float32 list, or one named like it."""
    return layer.type in _FLOAT32 or layer.type.endswith(_FLOAT32_ENDINGS) or is_loss(layer)


def hands_on(layer: Layer) -> bool:
    """True for a class of torch.nn that computes in whatever arrives: float32 behind a layer that is kept so."""
    return layer.type in _FOLLOWS


def makes_half(layer: Layer) -> bool:
    """True for a class whose work is a matrix product or a convolution."""
    return not float32_under_autocast(layer) and (
        layer.type.startswith(_HALF_STARTS) or layer.type.endswith(_HALF_ENDINGS)
    )


def half_outputs(profile: Profile, use: InUse) -> tuple[Layer, ...]:
    """The layers whose counted output is half under autocast, in the order of the first forward pass."""
    called = sorted((layer for layer in profile.layers if layer.order >= 0), key=lambda layer: layer.order)
    known: dict[str, bool] = {}
    arriving = False
    for layer in called:
        inside = _inside(layer, called)
        if inside:
            # Its own arithmetic follows its last child; a norm in it keeps a float32 path alive beside the half one.
            arriving = known[inside[-1].name] and not any(map(float32_under_autocast, inside))
        elif makes_half(layer):
            arriving = True
        elif float32_under_autocast(layer):
            arriving = False
        elif layer.type not in _FOLLOWS:
            # A class of the user's: one with weights computes with them.
            arriving = arriving or "weight" in layer.sites
        known[layer.name] = arriving
    return tuple(
        layer for layer in called if ACTIVATION in layer.sites and _half(layer, known[layer.name], profile, use)
    )


def _half(layer: Layer, guessed: bool, profile: Profile, use: InUse) -> bool:
    seen = layer.observed.get(ACTIVATION) or (layer.sites[ACTIVATION] if use.as_run else None)
    if seen is None or not seen.dtype:
        return guessed
    if float32_under_autocast(layer) and not any_half(profile.precision.weights):
        return False  # autocast on a CPU does not protect it, on CUDA it does
    return seen.dtype in HALF


def _inside(layer: Layer, called: Iterable[Layer]) -> list[Layer]:
    """The layers called inside this one; a root that bears the name of its class holds every layer before it."""
    start = f"{layer.name}."
    # What only holds weights for its parent (the projection of torch's attention) is never called, and comes last.
    inside = [one for one in called if one.name.startswith(start) and one.order < layer.order]
    if not inside and layer.name == layer.type and layer.type not in _FOLLOWS:
        if makes_half(layer) or float32_under_autocast(layer):
            return []
        inside = [one for one in called if one.order < layer.order and not is_loss(one)]
    return inside


def reach(layer: Layer, counts: ExponentHistogram) -> float:
    """The largest magnitude of an output that is not a mask: huge, negative, and far above everything else."""
    exponents = sorted((exponent for exponent, number in counts.exponents.items() if number), reverse=True)
    product = makes_half(layer) and not layer.type.endswith("Attention")
    if not exponents or product:
        return counts.amax  # a matrix product masks nothing; attention may hand on its mask, as that of T5 does
    top, rest = exponents[0], exponents[1:]
    lone = counts.high < 2.0**top and (not rest or top - rest[0] > _MASK_GAP)
    if not lone:
        return counts.amax
    return max(counts.high, 2.0 ** (rest[0] + 1)) if rest else 0.0


def infinities(counts: ExponentHistogram) -> int:
    """How many infinities are no mask: negative ones alone are."""
    return counts.inf if counts.positive_inf or counts.nan else 0
