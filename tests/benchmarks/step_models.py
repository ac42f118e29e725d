"""Small models whose training step is timed: name -> a function that builds one and returns its model and its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        activated: torch.Tensor = self.relu(out)
        return activated


class _Classifier(nn.Module):
    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        pooled = features.mean((2, 3)) if features.dim() == 4 else features.mean(1)
        logits: torch.Tensor = self.head(pooled)
        return logits


def cnn(device: str) -> tuple[nn.Module, Step]:
    """A residual network of four blocks on 16 images of 32 x 32."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    blocks = [_Block(32, 32, 1), _Block(32, 64, 2), _Block(64, 64, 1), _Block(64, 128, 2)]
    model = _Classifier(nn.Sequential(*stem, *blocks), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    x, y = torch.randn(16, 3, 32, 32, device=device), torch.randint(0, 10, (16,), device=device)
    return model, _classify(model, optimizer, x, y)


def transformer(device: str) -> tuple[nn.Module, Step]:
    """Four layers of width 128 on 8 sequences of 64."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = _Classifier(body, nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(8, 64, 128, device=device), torch.randint(0, 10, (8,), device=device)
    return model, _classify(model, optimizer, x, y)


def gpt2(device: str) -> tuple[nn.Module, Step]:
    """transformers' GPT-2 with four layers of width 128 and 1,000 tokens, on 8 sequences of 64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config).to(device)  # type: ignore[arg-type]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 1000, (8, 64), device=device)

    def step() -> None:
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, step


def _classify(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> Step:
    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


MODELS: dict[str, Callable[[str], tuple[nn.Module, Step]]] = {"CNN": cnn, "transformer": transformer, "GPT-2": gpt2}
