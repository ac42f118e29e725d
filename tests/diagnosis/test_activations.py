"""What is half under CUDA's autocast: our table against torch's lists, and how it spreads from layer to layer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from amp_doctor.diagnosis.activations import float32_under_autocast, half_outputs, infinities, makes_half, reach
from amp_doctor.diagnosis.precision import in_use
from amp_doctor.diagnosis.profile import Layer
from amp_doctor.numerics.histogram import ExponentHistogram
from tests.diagnosis.miniature import miniature

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "LOWER_PRECISION_FP": "half",
    "FP32": "float32",
    "FP32_SET_OPT_DTYPE": "float32",
    "PROMOTE": "promote",
}
# Class of torch.nn -> the operator that computes its result.
OPERATORS = {
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "ConvTranspose2d": "conv_transpose2d",
    "PReLU": "prelu",
    "GRUCell": "gru_cell",
    "LSTMCell": "lstm_cell",
    "MultiheadAttention": "scaled_dot_product_attention",
    "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm",
    "RMSNorm": "rms_norm",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Softplus": "softplus",
    "CosineSimilarity": "cosine_similarity",
    "UpsamplingNearest2d": "upsample_nearest2d",
    "UpsamplingBilinear2d": "upsample_bilinear2d",
    "MSELoss": "mse_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "NLLLoss": "nll_loss",
    "Bilinear": "bilinear",
    "BatchNorm2d": "batch_norm",
    "InstanceNorm2d": "instance_norm",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Dropout": "dropout",
    "MaxPool2d": "max_pool2d",
    "AvgPool2d": "avg_pool2d",
}


def policies() -> dict[str, str]:
    """Operator -> what the installed torch does with it under autocast on CUDA."""
    text = HEADER.read_text()
    found: dict[str, str] = {}
    for name, policy in LISTS.items():
        body = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?[^\\])\n", text, re.DOTALL)
        assert body is not None, name
        found |= dict.fromkeys(re.findall(r"_\((\w+)", body[1]), policy)
    assert len(found) > 90
    return found


@pytest.mark.parametrize(("kind", "operator"), OPERATORS.items(), ids=OPERATORS)
def test_the_table_is_that_of_torch(kind: str, operator: str) -> None:
    layer, policy = Layer("layer", kind), policies().get(operator, "follows")
    assert makes_half(layer) == (policy == "half")
    # Promoted to its own weights, which are float32.
    assert float32_under_autocast(layer) == (policy in ("float32", "promote"))


def test_classes_of_libraries_go_by_their_names() -> None:
    for kind in ("T5LayerNorm", "LlamaRMSNorm", "FocalLoss", "OPTLearnedPositionalEmbedding"):
        assert float32_under_autocast(Layer("layer", kind))
    for kind in ("Conv1D", "LoraLinear", "NonDynamicallyQuantizableLinear", "CausalSelfAttention"):
        assert makes_half(Layer("layer", kind))
    assert float32_under_autocast(Layer("model.criterion", "Whatever"))


def half(*layers: tuple[str, str], precision: str = "", dtype: str = "float32") -> list[str]:
    sites = "".join(
        f'[[site]]\nlayer = "{name}"\ntype = "{kind}"\nrole = "activation"\ndtype = "{dtype}"\nexponents = {{ 0 = 1 }}\n'
        for name, kind in layers
    )
    profile = miniature(f"[precision]\n{precision}\n{sites}")
    return [layer.name for layer in half_outputs(profile, in_use(profile))]


def test_half_spreads_from_products_until_a_norm() -> None:
    found = half(
        ("drop", "Dropout"),
        ("fc1", "Linear"),
        ("act", "GELU"),
        ("norm", "LayerNorm"),
        ("drop2", "Dropout"),
        ("fc2", "Linear"),
    )
    assert found == ["fc1", "act", "fc2"]


def test_a_block_is_half_when_all_in_it_is() -> None:
    assert half(("b.conv", "Conv2d"), ("b.bn", "BatchNorm2d"), ("b", "Block")) == ["b.conv", "b.bn", "b"]
    assert half(("b.norm", "LayerNorm"), ("b.fc", "Linear"), ("b", "Block")) == ["b.fc"]
    assert half(("emb", "Embedding"), ("fc", "Linear"), ("Net", "Net")) == ["fc"]
    assert half(("conv", "Conv2d"), ("fc", "Linear"), ("Net", "Net")) == ["conv", "fc", "Net"]


def test_where_the_run_shows_it_nothing_is_guessed() -> None:
    layers = (("fc", "Linear"), ("norm", "LayerNorm"), ("act", "GELU"))
    assert half(*layers, precision='autocast = ["float16"]', dtype="float16") == ["fc", "act"]
    assert half(*layers, precision='autocast = ["float16"]', dtype="float32") == []
    assert half(*layers, precision='weights = ["float16"]', dtype="float16") == ["fc", "norm", "act"]
    assert half(*layers, precision='autocast = ["float16"]\ncalibrated = true', dtype="float32") == ["fc"]


def test_masks_are_no_magnitudes_and_outliers_of_a_product_are() -> None:
    masked = ExponentHistogram({-3: 500, 2: 500, 29: 4}, amax=1e9, amin=0.1, high=7.5, low=-1e9)
    assert reach(Layer("scores", "Scores"), masked) == 8.0
    assert reach(Layer("attention", "T5Attention"), masked) == 8.0
    assert reach(Layer("fc", "Linear"), masked) == 1e9
    both = ExponentHistogram({-3: 500, 2: 500, 29: 4}, amax=1e9, amin=0.1, high=1e9, low=-1e9)
    assert reach(Layer("scores", "Scores"), both) == 1e9
    near = ExponentHistogram({-3: 500, 11: 5, 17: 4}, amax=2e5, amin=0.1, high=7.5, low=-2e5)
    assert reach(Layer("scores", "Scores"), near) == 2e5
    assert reach(Layer("fc", "Linear"), ExponentHistogram(zeros=3)) == 0.0
    assert infinities(ExponentHistogram(negative_inf=5)) == 0
    assert infinities(ExponentHistogram(negative_inf=5, positive_inf=1)) == 6
    assert infinities(ExponentHistogram(negative_inf=5, nan=1)) == 5
