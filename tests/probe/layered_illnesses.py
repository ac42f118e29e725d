"""Operators that half does not stand, inside models of other kinds; each on a line that ends with `# ILL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

# Name -> the operators that may be named, and what makes a model and its step.
ILLNESSES: dict[str, tuple[tuple[str, ...], Callable[[], Step]]] = {}


def enter(*named: str) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def register(make: Callable[[], Step]) -> Callable[[], Step]:
        ILLNESSES[make.__name__] = named, make
        return make

    return register


class RootMeanSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)  # ILL


@enter("mul")
def norm_of_large_maps() -> Step:
    first = nn.Conv2d(3, 16, 3, padding=1)
    first.weight.data *= 400
    net = nn.Sequential(first, RootMeanSquare(), nn.Conv2d(16, 4, 1))
    return lambda: net(torch.randn(4, 3, 8, 8)).square().mean().backward()


class Standard(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0) + 1e-8)  # ILL


@enter("add", "div")
def dead_unit_standardised() -> Step:
    first = nn.Linear(8, 16)
    first.bias.data[3] = -50
    net = nn.Sequential(first, nn.ReLU(), Standard(), nn.Linear(16, 2))
    return lambda: net(torch.randn(32, 8)).float().square().mean().backward()


class Pointer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reads, self.asks = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 16)

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        h, _ = self.reads(x)
        scores = torch.einsum("bld,bd->bl", self.asks(h), h[:, -1])
        scores = torch.where(shown, scores, -1e9)  # ILL
        return F.log_softmax(scores, -1)


@enter("where")
def mask_times_soft_targets() -> Step:
    """Zero times the logarithm of what is hidden: zero in FP32, NaN in half."""
    net = Pointer()

    def step() -> None:
        shown = torch.rand(8, 12) > 0.3
        shown[:, 0] = True
        targets = shown.float() / shown.sum(1, keepdim=True)
        (-targets * net(torch.randn(8, 12, 4), shown)).sum().backward()

    return step


class Rendered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        out = self.field(x)
        alpha = 1 - torch.exp(-F.softplus(20 * out[..., 3]))
        left = torch.cumprod(1 - alpha.half() + 1e-10, -1)  # ILL
        return (left[..., None] * out[..., :3].sigmoid()).sum(1)


@enter("add")
def light_that_is_left() -> Step:
    net = Rendered()
    return lambda: net(torch.randn(16, 24, 3)).log().square().mean().backward()


class Covariance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maps, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.maps(x).flatten(2)
        pooled = h @ h.transpose(1, 2) / h.shape[-1]  # ILL
        head: Tensor = self.head(pooled.flatten(1))
        return head


@enter("matmul")
def covariance_divided_late() -> Step:
    net = Covariance()
    net.maps.weight.data *= 30
    return lambda: (net(torch.randn(4, 3, 32, 32)) * 1e-2).square().mean().backward()


class Moments(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean, square = x.mean((2, 3), keepdim=True), (x * x).mean((2, 3), keepdim=True)
        return (x - mean) / (square - mean * mean + 1e-3).abs().sqrt()  # ILL


@enter("sub")
def instance_norm_by_moments() -> Step:
    first = nn.Conv2d(3, 8, 3, padding=1)
    nn.init.constant_(first.bias, 40.0)  # type: ignore[arg-type]
    first.weight.data *= 0.3
    net = nn.Sequential(first, Moments(), nn.Conv2d(8, 2, 1))
    return lambda: net(torch.randn(4, 3, 8, 8)).square().mean().backward()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, total = torch.zeros(x.shape[1], 8), torch.zeros((), dtype=torch.float16)
        for now in x:
            h = self.cell(now, h)
            total = total + (30 * (self.head(h) - now[:, :1])).pow(2).sum().half()  # ILL
        return total.float() / len(x)


@enter("add")
def loss_of_many_time_steps() -> Step:
    net = Recurrent()
    return lambda: net(torch.randn(40, 8, 4)).backward()


class Ball(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        square = (h * h).sum(-1, keepdim=True).half()
        rest = 1 - square / (square + 1e-3)  # ILL
        return (h / (rest + 1e-4)).float().norm(dim=-1)


@enter("rsub", "sub")
def hyperbolic_factor() -> Step:
    net = Ball()
    net.embed.bias.data += 3
    return lambda: net(torch.randn(32, 6)).log().mean().backward()


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.codes = nn.Linear(8, 16), nn.Parameter(torch.randn(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x) * 20 + 300
        codes = (self.codes * 20 + 300).to(z.dtype)
        distance = (z * z).sum(1, keepdim=True) - 2 * (z @ codes.T) + (codes * codes).sum(1)  # ILL
        return distance.float().min(1).values


@enter("mul", "matmul")
def nearest_code_by_expansion() -> Step:
    net = Codebook()
    return lambda: net(torch.randn(16, 8)).clamp(min=0).add(1).log().mean().backward()


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x)
        positions = torch.arange(x.shape[1], dtype=q.dtype)  # ILL
        angles = torch.outer(positions, 1 / torch.arange(1, 9).to(q.dtype))
        return torch.cat([q[..., :8] * angles.cos(), q[..., 8:] * angles.sin()], -1)


@enter("arange")
def positions_of_a_long_sequence() -> Step:
    net = Turned()
    return lambda: net(torch.randn(1, 3000, 16)).float().square().mean().backward()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v, self.g = nn.Parameter(torch.randn(16, 8) * 1e-5), nn.Parameter(torch.ones(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        v = self.v.half()
        weight = self.g * v / torch.sqrt((v * v).sum(1, keepdim=True) + 1e-6)  # ILL
        return F.linear(x, weight.float())


@enter("mul")
def weight_norm_by_hand() -> Step:
    net = Normed()
    return lambda: net(torch.randn(8, 8)).square().mean().backward()


class Hub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.message.weight.data *= 20

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        m = self.message(x)[source]
        gathered = torch.zeros(x.shape[0], 8, dtype=m.dtype).index_add(0, target, m * m)  # ILL
        head: Tensor = self.head(gathered / 1e5)
        return head


@enter("index_add")
def sum_over_a_hub() -> Step:
    net = Hub()

    def step() -> None:
        target = torch.cat((torch.zeros(3500, dtype=torch.int64), torch.randint(0, 50, (500,))))
        net(torch.randn(50, 6), torch.randint(0, 50, (4000,)), target).square().mean().backward()

    return step
