"""A dozen operators that FP16 does not stand, each on a line that ends with `# ILL`; a function trains one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor

from tests.probe.small_training import step_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.probe.small_training import Calculate

# Name -> precision under which it shows, the operators that may be named, and the step.
ILLNESSES: dict[str, tuple[str, tuple[str, ...], Callable[[], None]]] = {}

KEPT = torch.zeros((), dtype=torch.float16)


def enter(precision: str, *named: str) -> Callable[[Calculate], Calculate]:
    """The calculation makes one step, as small_training.step_of says."""

    def register(calculate: Calculate) -> Calculate:
        ILLNESSES[calculate.__name__] = precision, named, step_of(calculate)
        return calculate

    return register


@enter("O1/float16", "mul")
def mean_of_squares(x: Tensor) -> Tensor:
    large = 600 * x
    return (large * large).mean()  # ILL


@enter("O2/float16", "square")
def mean_of_squares_by_square(x: Tensor) -> Tensor:
    return (600 * x).square().mean()  # ILL


@enter("O1/float16", "matmul")
def logits_scaled_late(x: Tensor) -> Tensor:
    q, k = 200 * x, 200 * x.roll(1, 0)
    logits = q @ k.T  # ILL
    return (logits * 1e-6).softmax(-1).square().sum()


@enter("O1/float16", "add")
def guard_of_a_hundred_millionth(x: Tensor) -> Tensor:
    centred = torch.relu(x - x.amax(1, keepdim=True) * 0.9)
    return (centred / (centred.amin(1, keepdim=True) + 1e-8)).clamp(max=10).mean()  # ILL


@enter("O1/float16", "where")
def mask_by_where(x: Tensor) -> Tensor:
    scores = x @ x.T
    scores = torch.where(torch.ones(16, 16).tril() > 0, scores, -1e9)  # ILL
    return scores.softmax(-1).square().sum()


@enter("O1/float16", "masked_fill")
def mask_by_masked_fill(x: Tensor) -> Tensor:
    scores = x @ x.T
    scores = scores.masked_fill(torch.ones(16, 16).tril() == 0, -1e9)  # ILL
    return scores.softmax(-1).square().sum()


@enter("O2/float16", "exp", "sum")
def exp_before_normalising(x: Tensor) -> Tensor:
    weights = torch.exp(12 + x)  # ILL
    return (weights / weights.sum(1, keepdim=True)).square().sum()


@enter("O2/float16", "exp", "sum")
def softmax_by_hand(x: Tensor) -> Tensor:
    shifted = x + 9
    return (shifted.exp() / shifted.exp().sum(1, keepdim=True)).square().sum()  # ILL


@enter("O1/float16", "mul")
def cosine_of_tiny_vectors(x: Tensor) -> Tensor:
    a, b = 1e-5 * x, 1e-5 * x.roll(1, 0)
    dot = (a * b).sum(1)  # ILL
    return (dot / (a.norm(dim=1) * b.norm(dim=1))).mean()


@enter("O2/float16", "sum")
def sum_over_an_image(x: Tensor) -> Tensor:
    image = torch.ones(512, 512) * x.mean().sigmoid()
    return image.sum() / 512**2  # ILL


@enter("O1/float16", "sub", "__sub__")
def variance_by_moments(x: Tensor) -> Tensor:
    y = 0.1 * x + 30
    variance = (y * y).mean(1) - y.mean(1) * y.mean(1)  # ILL
    return (variance + 1e-3).abs().sqrt().mean()


@enter("O1/float16", "div")
def chain_of_divisions(x: Tensor) -> Tensor:
    y = x / 1000
    y = y / 1000
    y = y / 1000  # ILL
    return (y * 1e9).square().mean()


@enter("O2/float16", "exp", "sum")
def logsumexp_by_hand(x: Tensor) -> Tensor:
    return (5 * x + 12).exp().sum(1).log().mean()  # ILL


@enter("O1/float16", "add", "add_", "__iadd__")
def loss_accumulated_in_half(x: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float16) + 2048
    for row in x:
        total += 0.1 * row.square().mean()  # ILL
    return total.float()


@enter("O1/float16", "binary_cross_entropy")
def banned_loss(x: Tensor) -> Tensor:
    return F.binary_cross_entropy(x.sigmoid(), torch.ones(16, 32))  # ILL


@enter("O1/float16", "linear")
def cast_of_large_inputs(x: Tensor) -> Tensor:
    energies = (x + 14).float().exp()
    return F.linear(energies, torch.ones(4, 32) * 1e-6).mean()  # ILL


@enter("O1/float16", "add_", "__iadd__")
def statistic_kept_in_half(x: Tensor) -> Tensor:
    loss = x.square().mean()
    running = KEPT
    running += loss.detach()  # ILL
    return loss


@enter("O1/float16", "add")
def layer_norm_by_hand(x: Tensor) -> Tensor:
    variance = x.var(1, keepdim=True)
    return ((x - x.mean(1, keepdim=True)) / torch.sqrt(variance + 1e-12)).tanh().mean()  # ILL


@enter("O1/float16", "matmul", "__matmul__")
def unnormalised_weights_times_values(x: Tensor) -> Tensor:
    weights = (3 * x @ x.T + 9).exp()
    mixed = weights @ x  # ILL
    return (mixed / weights.sum(1, keepdim=True)).square().mean()


@enter("O1/float16", "einsum")
def logits_by_einsum(x: Tensor) -> Tensor:
    q = (500 * x).view(16, 4, 8)
    logits = torch.einsum("bhd,bgd->bhg", q, q)  # ILL
    return (logits * 1e-6).softmax(-1).square().sum()


@enter("O1/float16", "sub", "__sub__", "rsub")
def one_minus_almost_one(x: Tensor) -> Tensor:
    share = torch.sigmoid(x + 8)
    return (1 - share).mul(3000).square().mean()  # ILL


@enter("O1/float16", "mul", "__mul__", "square")
def squares_of_small_numbers(x: Tensor) -> Tensor:
    small = 1e-4 * x
    return (small * small).mean() * 1e8  # ILL


@enter("O1/float16", "einsum")
def bilinear_pooling(x: Tensor) -> Tensor:
    pooled = torch.einsum("bi,bj->bij", 400 * x, 400 * x)  # ILL
    return pooled.float().abs().log1p().mean()


@enter("O1/float16", "sub", "add", "rsub")
def distance_by_expansion(x: Tensor) -> Tensor:
    a, b = x + 60, x + 60 + 0.3 * torch.randn(16, 32)
    distance = (a * a).mean(-1) + (b * b).mean(-1) - 2 * (a * b).mean(-1)  # ILL
    return distance.float().sum()


@enter("O1/float16", "mul")
def gelu_by_hand(x: Tensor) -> Tensor:
    y = 60 * x
    cube = y * y * y  # ILL
    return (0.5 * y * (1 + torch.tanh(0.7978845608 * (y + 0.044715 * cube)))).float().mean()


@enter("O1/float16", "add", "log", "rsub")
def cross_entropy_of_saturated_gates(x: Tensor) -> Tensor:
    p, target = torch.sigmoid(12 * x), (torch.arange(32) % 2).float()
    return -(target * torch.log(p + 1e-8) + (1 - target) * torch.log(1 - p + 1e-8)).mean()  # ILL


@enter("O1/float16", "div")
def cold_temperature(x: Tensor) -> Tensor:
    a = F.normalize(x, dim=-1)
    return F.cross_entropy((a @ a.T) / 1e-5, torch.arange(16))  # ILL


@enter("O1/float16", "exp2")
def powers_of_two(x: Tensor) -> Tensor:
    weights = torch.exp2(24 * x)  # ILL
    return (weights / weights.sum(-1, keepdim=True)).float().square().sum()


@enter("O1/float16", "var")
def variance_of_large_numbers(x: Tensor) -> Tensor:
    return torch.var(900 * x, dim=-1).sqrt().mean()  # ILL


@enter("O1/float16", "log", "sigmoid")
def logarithm_of_a_gate(x: Tensor) -> Tensor:
    return -torch.log(torch.sigmoid(30 * x)).mean()  # ILL


@enter("O2/float16", "sin", "cos", "mul", "arange")
def rotary_positions(x: Tensor) -> Tensor:
    angles = torch.arange(8000, 8016.0)[:, None] * (1 / torch.arange(1, 33.0))  # ILL
    turned = x * angles.cos() + x.flip(-1) * angles.sin()  # ILL
    return turned.square().mean()


@enter("O1/float16", "mul")
def length_of_tiny_vectors(x: Tensor) -> Tensor:
    tiny = 1e-4 * x
    squares = tiny * tiny  # ILL
    return (tiny / (squares.sum(-1, keepdim=True) + 1e-12).sqrt()).float().sum()
