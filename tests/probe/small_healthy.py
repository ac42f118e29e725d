"""Small healthy models that look ill to one who counts carelessly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn

from tests.probe.small_training import HEALTHY, Batch, classes, healthy, train

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HEALTHY"]

ce = F.cross_entropy


def tokens_batch(number: int, length: int, kinds: int) -> Callable[[], Batch]:
    def batch() -> Batch:
        tokens = torch.randint(0, number, (32, length))
        return tokens, tokens[:, -1] % kinds

    return batch


@healthy
def pixels_up_to_255() -> None:
    convolutions = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)]
    model = nn.Sequential(*convolutions, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

    def batch() -> Batch:
        return torch.randint(0, 256, (8, 3, 16, 16)).float(), torch.randint(0, 4, (8,))

    train(model, torch.optim.Adam(model.parameters(), 1e-3), batch, ce)


class LowestMask(nn.Module):
    """A mask of the lowest finite number, as transformers builds it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min).triu(1)


class InfiniteMask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)


class Masked(nn.Module):
    def __init__(self, mask: nn.Module) -> None:
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(20, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.mask, self.softmax, self.out = mask, nn.Softmax(-1), nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        logits = self.q(x) @ self.k(x).transpose(1, 2) / 6 + self.mask(x)
        out: Tensor = self.out((self.softmax(logits) @ x).mean(1))
        return out


@healthy
def a_mask_of_the_lowest_number() -> None:
    model = Masked(LowestMask())
    train(model, torch.optim.Adam(model.parameters(), 1e-3), tokens_batch(20, 10, 4), ce)


@healthy
def a_mask_of_infinities() -> None:
    model = Masked(InfiniteMask())
    train(model, torch.optim.Adam(model.parameters(), 1e-3), tokens_batch(20, 10, 4), ce)


@healthy
def a_loss_per_sample() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(25):
        x, y = classes()
        optimizer.zero_grad()
        losses = ce(model(x), y, reduction="none")
        losses.backward(torch.full_like(losses, 1 / 32))
        optimizer.step()


@healthy
def a_vocabulary_of_sure_predictions() -> None:
    model = nn.Sequential(nn.Embedding(2000, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 2000))

    def batch() -> Batch:
        x = torch.randint(0, 8, (64,))
        return x, (x + 1) % 8

    train(model, torch.optim.Adam(model.parameters(), 1e-2), batch, ce, 60)


@healthy
def log_softmax_at_the_end() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1000), nn.LogSoftmax(-1))
    train(model, torch.optim.Adam(model.parameters(), 1e-2), classes, F.nll_loss, 60)


@healthy
def returns_in_the_hundreds() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)
    for _ in range(25):
        policy = torch.distributions.Categorical(logits=model(torch.randn(64, 8)))
        gained = policy.log_prob(policy.sample()) * 100 * torch.randn(64)
        optimizer.zero_grad()
        (-gained.mean() - 0.01 * policy.entropy().mean()).backward()
        optimizer.step()


@healthy
def a_warm_up_from_zero() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 1000)
    for _ in range(25):
        x, y = classes()
        optimizer.zero_grad()
        ce(model(x), y).backward()
        optimizer.step()
        schedule.step()


@healthy
def bfloat16_with_large_updates() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95))

    def batch() -> Batch:
        x, y = classes()
        return x.bfloat16(), y

    train(model, optimizer, batch, lambda out, y: ce(out.float(), y))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.b.weight.data.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(torch.relu(self.a(x)))
        return out


@healthy
def thirty_residual_branches_without_a_norm() -> None:
    model = nn.Sequential(nn.Linear(16, 32), *[Branch() for _ in range(30)], nn.Linear(32, 4))
    train(model, torch.optim.Adam(model.parameters(), 1e-3), classes, ce)


class Reader(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(20, 16), rnn, nn.Linear(32, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.rnn(self.embed(tokens))[0][:, -1])
        return logits


@healthy
def an_lstm_as_it_comes() -> None:
    model = Reader(nn.LSTM(16, 32, batch_first=True))
    train(model, torch.optim.Adam(model.parameters(), 1e-3), tokens_batch(20, 40, 3), ce)


@healthy
def a_gru_as_it_comes() -> None:
    model = Reader(nn.GRU(16, 32, batch_first=True))
    train(model, torch.optim.Adam(model.parameters(), 1e-3), tokens_batch(20, 25, 3), ce)


@healthy
def an_rnn_as_it_comes() -> None:
    model = Reader(nn.RNN(16, 32, batch_first=True))
    train(model, torch.optim.Adam(model.parameters(), 1e-3), tokens_batch(20, 20, 3), ce)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.f, self.out = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.a(x))
        logits: Tensor = self.out(hidden + self.gate * self.f(hidden))
        return logits


@healthy
def a_gate_that_starts_closed() -> None:
    model = Gated()
    train(model, torch.optim.SGD(model.parameters(), 0.1), classes, ce)


@healthy
def a_sparse_code() -> None:
    encode = nn.Linear(16, 256)
    nn.init.constant_(encode.bias, -1.5)
    model = nn.Sequential(encode, nn.ReLU(), nn.Linear(256, 16))

    def batch() -> Batch:
        x = torch.randn(64, 16)
        return x, x

    train(model, torch.optim.Adam(model.parameters(), 1e-3), batch, F.mse_loss)


@healthy
def segmentation_with_most_pixels_ignored() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 21, 1))

    def batch() -> Batch:
        labels = torch.randint(0, 21, (2, 32, 32))
        labels[:, :28] = 255
        return torch.randn(2, 3, 32, 32), labels

    train(model, torch.optim.SGD(model.parameters(), 0.01), batch, lambda out, y: ce(out, y, ignore_index=255))


@healthy
def detection_with_a_focal_loss() -> None:
    head = nn.Conv2d(16, 9, 3, padding=1)
    torch.nn.init.constant_(head.bias, -4.6)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), head)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        wrong = (out.sigmoid() - y).abs()
        entropy = F.binary_cross_entropy_with_logits(out, y, reduction="none")
        return (0.25 * wrong.square() * entropy).sum() / y.sum().clamp(min=1)

    def batch() -> Batch:
        return torch.randn(2, 3, 32, 32), (torch.rand(2, 9, 32, 32) < 0.002).float()

    train(model, torch.optim.AdamW(model.parameters(), 1e-3), batch, loss)


@healthy
def a_mean_over_many_pixels() -> None:
    convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    model = nn.Sequential(*convolutions, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def batch() -> Batch:
        x = torch.randn(4, 1, 96, 96)
        return x, (x > 0).float()

    train(model, torch.optim.Adam(model.parameters(), 1e-3), batch, F.binary_cross_entropy_with_logits)
