"""Training steps of many kinds, each a function that runs one; what a recorder must be able to write down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.probe.small_architectures import ENCODER_DECODER, GROUPED, IMAGE, TEXT, VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

ZOO: dict[str, Callable[[], tuple[nn.Module, Step]]] = {}


def enter(made: Callable[[], tuple[nn.Module, Step]]) -> Callable[[], tuple[nn.Module, Step]]:
    ZOO[made.__name__] = made
    return made


def stepping(model: nn.Module, loss: Callable[[], Tensor]) -> tuple[nn.Module, Step]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return model, step


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm_a, self.norm_b = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_a(self.a(x)), inplace=True)
        y = self.norm_b(self.b(y))
        y += x
        return y.relu_()


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = nn.Conv2d(3, 8, 3), nn.Sequential(Block(8), Block(8)), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(F.max_pool2d(self.stem(x), 2))
        if features.mean() > 1e6:
            features = features / 2
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


@enter
def resnet() -> tuple[nn.Module, Step]:
    model = ResNet()
    return stepping(model, lambda: F.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.randint(0, 10, (4,))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)])
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.norm, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor, time: Tensor | None = None) -> dict[str, Tensor]:
        first = F.silu(self.down[0](x))
        second = F.silu(self.down[1](F.avg_pool2d(first, 2)))
        if time is not None:
            second = second + torch.sin(time)[:, None, None, None]
        joined = torch.cat([first, self.up(second)], 1)
        return {"logits": self.out(self.norm(joined))}


@enter
def unet() -> tuple[nn.Module, Step]:
    model = UNet()

    def loss() -> Tensor:
        x = torch.randn(2, 1, 16, 16)
        return F.binary_cross_entropy_with_logits(model(x)["logits"], (x > 0).float())

    return stepping(model, loss)


@enter
def diffusion() -> tuple[nn.Module, Step]:
    model = UNet()
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)

    def loss() -> Tensor:
        x, noise, time = torch.rand(2, 1, 16, 16), torch.randn(2, 1, 16, 16), torch.randint(0, 100, (2,))
        kept = alphas[time][:, None, None, None]
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        return F.mse_loss(model(noisy, time.float())["logits"], noise)

    return stepping(model, loss)


def _transformer(name: str, config: str, settings: dict[str, Any], batch: Callable[[], dict[str, Any]]) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model = getattr(transformers, name)(getattr(transformers, config)(**settings)).train()
    return stepping(model, lambda: model(**batch()).loss)


def _tokens() -> dict[str, Any]:
    tokens = torch.randint(5, VOCABULARY, (2, 16))
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[0, 10:] = 0
    return {"input_ids": tokens, "labels": tokens, "attention_mask": mask}


def _images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 5, (2,))}


GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {
    "vocab_size": VOCABULARY, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip


@enter
def bert() -> tuple[nn.Module, Step]:
    return _transformer("BertForMaskedLM", "BertConfig", TEXT, _tokens)


@enter
def gpt2() -> tuple[nn.Module, Step]:
    return _transformer("GPT2LMHeadModel", "GPT2Config", GPT2, _tokens)


@enter
def gpt2_eager() -> tuple[nn.Module, Step]:
    return _transformer("GPT2LMHeadModel", "GPT2Config", {**GPT2, "attn_implementation": "eager"}, _tokens)


@enter
def llama() -> tuple[nn.Module, Step]:
    return _transformer("LlamaForCausalLM", "LlamaConfig", GROUPED, _tokens)


@enter
def t5() -> tuple[nn.Module, Step]:
    return _transformer("T5ForConditionalGeneration", "T5Config", T5, _tokens)


@enter
def bart() -> tuple[nn.Module, Step]:
    settings = {**ENCODER_DECODER, "max_position_embeddings": 64}
    return _transformer("BartForConditionalGeneration", "BartConfig", settings, _tokens)


@enter
def vit() -> tuple[nn.Module, Step]:
    return _transformer("ViTForImageClassification", "ViTConfig", {**IMAGE, "num_labels": 5}, _images)


@enter
def mixtral() -> tuple[nn.Module, Step]:
    return _transformer("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}, _tokens)


def _checkpointed(reentrant: bool) -> tuple[nn.Module, Step]:
    model, step = gpt2()
    trained: Any = model
    trained.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model, step


@enter
def gpt2_checkpointed() -> tuple[nn.Module, Step]:
    return _checkpointed(reentrant=False)


@enter
def gpt2_checkpointed_reentrant() -> tuple[nn.Module, Step]:
    return _checkpointed(reentrant=True)


class Experts(nn.Module):
    """Tokens go to the expert that scores highest: loops and shapes depend on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(16, 4), nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if rows.numel():
                result[rows] += weights[rows, None] * expert(x[rows])
        logits: Tensor = self.out(result)
        return logits


@enter
def mixture_of_experts() -> tuple[nn.Module, Step]:
    model = Experts()
    return stepping(model, lambda: F.cross_entropy(model(torch.randn(32, 16)), torch.randint(0, 3, (32,))))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, *, packed: bool = False) -> None:
        super().__init__()
        self.embed, self.out, self.packed = nn.Embedding(30, 16), nn.Linear(64, 30), packed
        self.rnn: Any = kind(16, 32, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embed(tokens)
        if self.packed:
            lengths = torch.tensor([12, 9, 5, 3])
            packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        else:
            hidden, _ = self.rnn(embedded)
        logits: Tensor = self.out(hidden)
        return logits


def _recurrent(kind: Any, *, packed: bool = False) -> tuple[nn.Module, Step]:
    model = Recurrent(kind, packed=packed)

    def loss() -> Tensor:
        tokens = torch.randint(0, 30, (4, 12))
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return stepping(model, loss)


@enter
def lstm() -> tuple[nn.Module, Step]:
    return _recurrent(nn.LSTM)


@enter
def gru() -> tuple[nn.Module, Step]:
    return _recurrent(nn.GRU)


@enter
def gru_packed() -> tuple[nn.Module, Step]:
    return _recurrent(nn.GRU, packed=True)


@enter
def gru_cell() -> tuple[nn.Module, Step]:
    model = nn.ModuleDict({"cell": nn.GRUCell(8, 16), "out": nn.Linear(16, 2)})

    def loss() -> Tensor:
        state = torch.zeros(4, 16)
        for moment in torch.randn(6, 4, 8):
            state = model["cell"](moment, state)
        return F.cross_entropy(model["out"](state), torch.randint(0, 2, (4,)))

    return stepping(model, loss)


@enter
def gan() -> tuple[nn.Module, Step]:
    generator = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(True), nn.Linear(32, 8))
    critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(one.parameters(), 1e-2) for one in (critic, generator)]
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)

    def step() -> None:
        fake = generator(torch.randn(16, 4))
        optimizers[0].zero_grad()
        real = F.binary_cross_entropy_with_logits(critic(torch.randn(16, 8)), ones)
        (real + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), ones).backward()
        optimizers[1].step()

    return nn.ModuleList([generator, critic]), step


@enter
def gradient_penalty() -> tuple[nn.Module, Step]:
    critic = nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 1))

    def loss() -> Tensor:
        mixed = torch.randn(16, 8).requires_grad_()
        value = critic(mixed)
        (slope,) = torch.autograd.grad(value.sum(), mixed, create_graph=True)
        return value.mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()

    return stepping(critic, loss)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.slope * x)
        # Not the true derivative: a replay that ran autograd's own would differ.
        return 0.5 * grad * (s + ctx.slope * x * s * (1 - s)), None


applied: Any = Swish.apply


@enter
def custom_function() -> tuple[nn.Module, Step]:
    model = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 2)])

    def loss() -> Tensor:
        hidden = applied(model[0](torch.randn(8, 8)), 1.5)
        return F.cross_entropy(model[1](hidden), torch.randint(0, 2, (8,)))

    return stepping(model, loss)


@dataclass
class Output:
    logits: Tensor
    extra: dict[str, Tensor]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.layer, self.out = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Output:
        mixed, weights = self.attention(x, x, x)
        return Output(self.out(checkpoint(self.layer, mixed, use_reentrant=False).mean(1)), {"weights": weights})


@enter
def attention_in_a_dataclass() -> tuple[nn.Module, Step]:
    model = Attending()

    def loss() -> Tensor:
        output = model(torch.randn(4, 6, 16))
        return F.cross_entropy(output.logits, torch.randint(0, 2, (4,))) + 0.1 * output.extra["weights"].square().mean()

    return stepping(model, loss)


@enter
def views_and_writes() -> tuple[nn.Module, Step]:
    model = nn.Linear(8, 8)
    held = torch.randn(64, 8)

    def loss() -> Tensor:
        y = model(held[3:11])
        z = torch.zeros(8, 8)
        z[:, :4] = y[:, :4].sin()
        left = z[:, 4:]
        left.add_(y[:, 4:].T[:4].T).mul_(0.5)
        with torch.no_grad():
            target = model(held[:8]).clamp(0, 1)
        return (z - target).pow(2).mean() + z.diagonal().exp().sum() * 1e-3

    return stepping(model, loss)


@enter
def accumulated() -> tuple[nn.Module, Step]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(3):
            torch.autograd.backward(model(torch.randn(4, 8)).square().mean() / 3)
        optimizer.step()

    return model, step


@enter
def stochastic_depth() -> tuple[nn.Module, Step]:
    """As timm has it: memory that is not initialised, and then filled with random numbers."""
    model = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)])

    def loss() -> Tensor:
        hidden = model[0](torch.randn(32, 8))
        kept = hidden.new_empty((32, 1)).bernoulli_(0.8).div_(0.8)
        return F.cross_entropy(model[2](hidden + kept * model[1](hidden).relu()), torch.randint(0, 2, (32,)))

    return stepping(model, loss)


@enter
def lbfgs() -> tuple[nn.Module, Step]:
    """Several forward and backward passes inside one step of the optimizer, whose own arithmetic is no part of it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    def step() -> None:
        optimizer.step(closure)

    return model, step
