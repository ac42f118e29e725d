"""Small models with an illness each, in more disguises than fixtures/models: what is expected -> a function that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn

from tests.probe.small_training import ILL, Batch, classes, ill, train

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ILL"]

ce = F.cross_entropy


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def sequences(length: int, width: int) -> Callable[[], Batch]:
    def batch() -> Batch:
        x = torch.randn(16, length, width)
        return x, (x[:, 0, 0] > 0).long()

    return batch


class Elman(nn.Module):
    """A recurrence out of two Linears; `gain` is what a step multiplies by."""

    def __init__(self, gain: float, squash: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.wxh, self.whh, self.out = nn.Linear(8, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 2)
        self.squash: Any = squash
        nn.init.orthogonal_(self.whh.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 32)
        for time in range(x.shape[1]):
            state = self.squash(self.wxh(x[:, time]) + self.whh(state))
        logits: Tensor = self.out(state)
        return logits


@ill("AMP602 wxh", "AMP602 whh")
def recurrence_of_linears() -> None:
    model = Elman(0.15, torch.tanh)
    train(model, torch.optim.Adam(model.parameters(), 1e-3), sequences(30, 8), ce)


@ill("AMP604 whh", "AMP605 whh", "AMP605 out")
def exploding_recurrence() -> None:
    model = Elman(1.6, lambda state: state)
    train(model, torch.optim.SGD(model.parameters(), 1e-9), sequences(40, 8), ce)


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(30, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 3)
        with torch.no_grad():
            for name, parameter in self.lstm.named_parameters():
                if name == "bias_hh_l0":
                    parameter[32:64] = -6
                if name == "weight_hh_l0":
                    parameter.mul_(0.3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.lstm(self.embed(tokens))[0][:, -1])
        return logits


@ill("AMP602 embed")
def lstm_that_forgets() -> None:
    model = Forgetful()

    def batch() -> Batch:
        tokens = torch.randint(0, 30, (32, 40))
        return tokens, tokens[:, 0] % 3

    train(model, torch.optim.Adam(model.parameters(), 1e-3), batch, ce)


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.out = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(62_700 * torch.tanh(3 * self.up(x)), 0.1, self.training)
        logits: Tensor = self.out(self.norm(hidden))
        return logits


@ill("AMP605 FunctionalDropout")
def dropout_as_a_function() -> None:
    model = FunctionalDropout()
    train(model, torch.optim.Adam(model.parameters(), 1e-3), classes, ce)


class EinsumAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.einsum("bid,bjd->bij", 300 * self.q(x), 300 * self.k(x)) * 1e-5
        return torch.einsum("bij,bjd->bid", logits.softmax(-1), self.v(x))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attn, self.out = nn.Embedding(20, 32), EinsumAttention(), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.attn(self.embed(tokens)).mean(1))
        return logits


@ill("AMP605 attn")
def logits_by_einsum() -> None:
    model = Attending()

    def batch() -> Batch:
        tokens = torch.randint(0, 20, (16, 10))
        return tokens, tokens[:, 0] % 4

    train(model, torch.optim.Adam(model.parameters(), 1e-3), batch, ce)


@ill("AMP603 *")
def loss_of_a_billionth_of_a_thousandth() -> None:
    model = perceptron()
    train(model, torch.optim.Adam(model.parameters(), 1e-3), classes, lambda out, y: 1e-12 * ce(out, y))


@ill("AMP604 2")
def loss_times_a_million() -> None:
    model = perceptron()
    train(model, torch.optim.SGD(model.parameters(), 1e-8), classes, lambda out, y: 1e6 * ce(out, y))


@ill("AMP610 0", "AMP610 2")
def bfloat16_with_sgd() -> None:
    model = perceptron().bfloat16()

    def batch() -> Batch:
        x, y = classes()
        return x.bfloat16(), y

    train(model, torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), batch, lambda out, y: ce(out.float(), y))


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        nn.init.constant_(self.b.bias, -40)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.c(self.b(torch.relu(self.a(x))).clamp(min=0))
        return logits


@ill("AMP613 b")
def dead_behind_a_clamp() -> None:
    model = Clamped()
    train(model, torch.optim.SGD(model.parameters(), 0.1), classes, ce)


@ill("AMP607 0")
def a_nan_in_the_sixth_batch() -> None:
    model, number = perceptron(), 0

    def batch() -> Batch:
        nonlocal number
        number += 1
        x, y = classes()
        x[3, 2] = float("nan") if number == 6 else 0.0
        return x, y

    train(model, torch.optim.SGD(model.parameters(), 0.1), batch, ce)


@ill("AMP607 loss")
def a_loss_of_nan() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer, classes, lambda out, _: (out - out.max()).clamp(max=0).mean().log())


@ill("AMP605 0")
def a_weight_beyond_half() -> None:
    first = nn.Linear(16, 32)
    first.weight.data[0, 0] = 1e5
    model = nn.Sequential(first, nn.LayerNorm(32), nn.Linear(32, 4))

    def batch() -> Batch:
        x, y = classes()
        return 1e-3 * x, y

    train(model, torch.optim.SGD(model.parameters(), 0.01), batch, ce)


@ill("AMP609 -")
def a_scale_below_one() -> None:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=0.25)
    for _ in range(25):
        x, y = classes()
        optimizer.zero_grad()
        scaler.scale(ce(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


@ill("AMP608 0")
def a_scale_that_dies() -> None:
    """That it is below 1 in the end follows from the skipping."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(25):
        x, y = classes()
        optimizer.zero_grad()
        scaler.scale(ce(model(x), y) + (0 * next(model.parameters())).sum().sqrt()).backward()
        scaler.step(optimizer)
        scaler.update()


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.big, self.norm, self.out = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1)
        self.big.weight.data.mul_(2e5)

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.out(self.norm(self.big(x)))
        return value


class Generator(nn.Sequential):
    pass


@ill("AMP605 Critic.big")
def one_of_two_networks() -> None:
    generator, critic = Generator(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), Critic()
    optimizers = [torch.optim.Adam(one.parameters(), 1e-4) for one in (generator, critic)]
    for _ in range(25):
        fake = generator(torch.randn(16, 4))
        optimizers[1].zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(16, 8)).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()


@ill("AMP605 3", "AMP605 4", "AMP605 5")
def a_convolution_that_overflows() -> None:
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
    second.weight.data.mul_(3e5)
    body = [first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*body, nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    train(model, optimizer, lambda: (torch.randn(8, 3, 12, 12), torch.randint(0, 4, (8,))), ce)
