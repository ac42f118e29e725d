"""Trainings that a probe must not touch, beyond fixtures/models: hooks in places where other tools break or change bits.

Each trains for 20 steps with the step function it is given nothing but torch for, and returns the models it trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 20
# Where autocast and the scaler work; tests/benchmarks/gpu_check.py sets another, and the default device with it.
DEVICE = "cpu"

Run = "Callable[[], list[nn.Module]]"
RUNS: dict[str, Callable[[], list[nn.Module]]] = {}


def a_run(run: Callable[[], list[nn.Module]]) -> Callable[[], list[nn.Module]]:
    RUNS[run.__name__] = run
    return run


def perceptron(inside: int = 8, outside: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inside, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, outside))


def example(inside: int = 8, classes: int = 3, number: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(number, inside), torch.randint(0, classes, (number,))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x_of: Callable[[], tuple[Tensor, Tensor]] = example
) -> None:
    for _ in range(STEPS):
        x, y = x_of()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout2d(0.2, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.drop(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        out += x
        activated: Tensor = self.relu(out)
        return activated


@a_run
def residual_in_place() -> list[nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), _Residual(4), _Residual(4), nn.Flatten(), nn.Linear(144, 3)
    )
    train(
        model,
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        lambda: (torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))),
    )
    return [model]


@a_run
def channels_last() -> list[nn.Module]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = lambda: (torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last), torch.randint(0, 3, (4,)))  # noqa: E731
    train(model, torch.optim.AdamW(model.parameters(), 1e-2), images)
    return [model]


@a_run
def accumulation() -> list[nn.Module]:
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for micro in range(3 * STEPS):
        x, y = example()
        (F.cross_entropy(model(x), y) / 3).backward()
        if micro % 3 == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return [model]


def _checkpointed(use_reentrant: bool) -> list[nn.Module]:
    first, middle, last = perceptron(8, 8), perceptron(8, 8), nn.Linear(8, 3)
    model = nn.ModuleList([first, middle, last])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = example()
        hidden = checkpoint(first, x.requires_grad_(), use_reentrant=use_reentrant)
        hidden = checkpoint(middle, hidden, use_reentrant=use_reentrant)
        optimizer.zero_grad()
        F.cross_entropy(last(hidden), y).backward()
        optimizer.step()
    return [model]


@a_run
def checkpoint_reentrant() -> list[nn.Module]:
    return _checkpointed(use_reentrant=True)


@a_run
def checkpoint_plain() -> list[nn.Module]:
    return _checkpointed(use_reentrant=False)


def _scaled(
    optimizer_of: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype | None, scale: float
) -> list[nn.Module]:
    model = perceptron()
    optimizer = optimizer_of(model.parameters())
    scaler = torch.amp.GradScaler(DEVICE, init_scale=scale, growth_interval=4)
    for _ in range(STEPS):
        x, y = example()
        with torch.autocast(DEVICE, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [model]


@a_run
def scaler_with_half() -> list[nn.Module]:
    return _scaled(lambda parameters: torch.optim.SGD(parameters, 0.1), torch.float16, 2.0**22)


@a_run
def scaler_with_float32() -> list[nn.Module]:
    return _scaled(lambda parameters: torch.optim.Adam(parameters, 1e-2), None, 2.0**16)


@a_run
def scaler_that_overflows() -> list[nn.Module]:
    return _scaled(lambda parameters: torch.optim.SGD(parameters, 0.1), None, 2.0**127)


@a_run
def scaler_and_fused() -> list[nn.Module]:
    return _scaled(lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True), None, 1000.0)


@a_run
def bfloat16_autocast() -> list[nn.Module]:
    return _scaled(lambda parameters: torch.optim.SGD(parameters, 0.1, fused=True), torch.bfloat16, 1.0)


@a_run
def fused_optimizers() -> list[nn.Module]:
    models: list[nn.Module] = []
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        model = perceptron()
        optimizer = make(model.parameters(), lr=0.01, fused=True)
        for _ in range(5):
            x, y = example()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        models.append(model)
    return models


@a_run
def lbfgs() -> list[nn.Module]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = example()

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    for _ in range(STEPS):
        optimizer.step(closure)
    return [model]


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        causal = torch.full((6, 6), float("-inf")).triu(1)
        mixed, _ = self.attention(x, x, x, attn_mask=causal)
        logits: Tensor = self.head(self.layer(mixed, src_mask=causal).mean(1))
        return logits


@a_run
def attention() -> list[nn.Module]:
    model = _Attention()
    train(
        model, torch.optim.RAdam(model.parameters(), 1e-2), lambda: (torch.randn(4, 6, 16), torch.randint(0, 3, (4,)))
    )
    return [model]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, 2, dropout=0.2, batch_first=True)
        self.cell = nn.GRUCell(12, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, (state, _) = self.lstm(x)
        hidden = state[-1]
        for time in range(states.shape[1]):
            hidden = self.cell(states[:, time], hidden)
        logits: Tensor = self.head(hidden)
        return logits


@a_run
def recurrent() -> list[nn.Module]:
    model = _Recurrent()
    train(model, torch.optim.NAdam(model.parameters(), 1e-2), lambda: (torch.randn(4, 5, 8), torch.randint(0, 3, (4,))))
    return [model]


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(8, 8)
        self.again = self.block
        self.embed = nn.Linear(8, 8, bias=False)
        self.embed.weight = self.block.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.again(F.relu(self.block(x)))) + self.embed(x)


@a_run
def shared_modules() -> list[nn.Module]:
    model = _Shared()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    return [model]


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]


class _Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.body(x).relu()
        return {"output": Output(self.head(hidden), (hidden, x)), "size": x.shape[0], "none": None}


@a_run
def structured_outputs() -> list[nn.Module]:
    model = _Structured()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = example()
        out = model(x)["output"]
        optimizer.zero_grad()
        (F.cross_entropy(out.logits, y) + out.hidden[0].square().mean()).backward()
        optimizer.step()
    return [model]


@a_run
def evaluation_in_between() -> list[nn.Module]:
    model, average = perceptron(), perceptron()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(STEPS):
        x, y = example()
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(x), y)
        with torch.inference_mode():
            model(x)
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
    return [model, average]


@a_run
def gradient_penalty() -> list[nn.Module]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(STEPS):
        x = torch.randn(16, 8, requires_grad=True)
        value = model(x)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        optimizer.zero_grad()
        (value.mean() + (gradient.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return [model]


@a_run
def functional_gradients() -> list[nn.Module]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

    for _ in range(STEPS):
        x, y = example()
        parameters = dict(model.named_parameters())
        found = torch.func.grad(loss_of)({name: one.detach() for name, one in parameters.items()}, x, y)
        samples = torch.func.vmap(lambda one: model(one[None])[0])(x)
        for name, parameter in parameters.items():
            parameter.grad = found[name] + 0 * samples.sum().detach()
        optimizer.step()
    return [model]


@a_run
def sparse_gradients() -> list[nn.Module]:
    table, head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 3)
    model = nn.Sequential(table, head)
    sparse, dense = torch.optim.SparseAdam(list(table.parameters()), 0.05), torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(STEPS):
        tokens = torch.randint(0, 50, (16,))
        model.zero_grad()
        F.cross_entropy(model(tokens), tokens % 3).backward()
        sparse.step()
        dense.step()
    return [model]


@a_run
def two_networks() -> list[nn.Module]:
    generator, critic = perceptron(4, 8), perceptron(8, 1)
    optimizers = [torch.optim.Adam(one.parameters(), 1e-2) for one in (generator, critic)]
    for _ in range(STEPS):
        fake = generator(torch.randn(16, 4))
        optimizers[1].zero_grad()
        (critic(fake.detach()).mean() - critic(torch.randn(16, 8)).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[0].step()
    return [generator, critic]


@a_run
def own_hooks() -> list[nn.Module]:
    model = perceptron()
    seen: list[float] = []
    model.register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    model[1].register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(float(outputs[0].sum())))  # type: ignore[index]
    model[3].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))  # type: ignore[index]
    train(model, torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.01))
    assert len(seen) == STEPS
    return [model]


@a_run
def lazy_and_late_modules() -> list[nn.Module]:
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
    model(torch.randn(2, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        if step == 5:
            model.insert(1, nn.Linear(16, 16))
            optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 0.05})
        x, y = example()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [model]


class _Forces(nn.Module):
    """A model that differentiates inside its own forward, where torch refuses saved-tensor hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        forces = torch.func.vmap(torch.func.grad(lambda one: self.energy(one).sum()))(x)
        logits: Tensor = self.head(x + forces)
        return logits


@a_run
def derivatives_in_forward() -> list[nn.Module]:
    model = _Forces()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    return [model]
