"""Further training steps, of kinds that were written down before the recorder and the replay had met them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

from tests.probe.recorded_zoo import ZOO, enter, stepping

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.probe.recorded_zoo import Step

__all__ = ["ZOO"]


@enter
def spectral_norm_gan() -> tuple[nn.Module, Step]:
    """A power iteration writes to buffers in every forward pass."""
    sn: Any = nn.utils.parametrizations.spectral_norm
    generator = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Unflatten(1, (16, 2, 2)), nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        sn(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2), sn(nn.Conv2d(8, 16, 4, 2, 1)), nn.LeakyReLU(0.2),
        nn.Flatten(), sn(nn.Linear(64, 1)),
    )  # fmt: skip
    optimizers = [torch.optim.Adam(one.parameters(), 1e-3) for one in (critic, generator)]

    def step() -> None:
        fake = generator(torch.randn(8, 8))
        optimizers[0].zero_grad()
        (F.relu(1 - critic(torch.randn(8, 3, 8, 8))).mean() + F.relu(1 + critic(fake.detach())).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-critic(fake).mean()).backward()
        optimizers[1].step()

    return nn.ModuleList([generator, critic]), step


@enter
def variational_autoencoder() -> tuple[nn.Module, Step]:
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ELU(), nn.Linear(32, 8))
    decoder = nn.Sequential(nn.Linear(4, 32), nn.ELU(), nn.Linear(32, 16))

    def loss() -> Tensor:
        x = torch.rand(32, 16)
        mean, log_deviation = encoder(x).chunk(2, -1)
        seen = Normal(mean, log_deviation.exp())
        divergence = kl_divergence(seen, Normal(0.0, 1.0)).sum(-1).mean()
        logits = decoder(seen.rsample())
        return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / 32 + divergence

    return stepping(nn.ModuleList([encoder, decoder]), loss)


@enter
def graph_convolution() -> tuple[nn.Module, Step]:
    model = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 4)])

    def loss() -> Tensor:
        x, source, target = torch.randn(40, 16), torch.randint(0, 40, (160,)), torch.randint(0, 40, (160,))
        degree = torch.zeros(40).scatter_add_(0, target, torch.ones(160)).clamp(min=1)
        for layer in model:
            h = layer(x)
            x = F.dropout(torch.zeros_like(h).index_add(0, target, h[source]) / degree[:, None], 0.2)
        return F.cross_entropy(x[:10], torch.randint(0, 4, (10,)))

    return stepping(model, loss)


@enter
def clipped_policy() -> tuple[nn.Module, Step]:
    """Proximal policy optimization: actions are sampled without gradients, and the advantage has mean zero."""
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(6, 32), nn.Tanh()), "policy": nn.Linear(32, 3)})
    value = model["value"] = nn.Linear(32, 1)

    def loss() -> Tensor:
        states, advantage = torch.randn(64, 6), torch.randn(64)
        with torch.no_grad():
            old: Any = Categorical(logits=model["policy"](model["body"](states)))
            actions = old.sample()
            before = old.log_prob(actions)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        hidden = model["body"](states)
        new: Any = Categorical(logits=model["policy"](hidden))
        ratio = (new.log_prob(actions) - before).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        miss = (value(hidden).squeeze(-1) - torch.randn(64)).pow(2).mean()
        return miss / 2 - gain - 0.01 * new.entropy().mean()

    return stepping(model, loss)


@enter
def contrastive_pairs() -> tuple[nn.Module, Step]:
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Linear(64, 32))

    def loss() -> Tensor:
        x = torch.randn(16, 16)
        z = torch.cat([F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2)])
        similar = (z @ z.t() / 0.1).masked_fill(torch.eye(32, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(similar, torch.arange(32).roll(16))

    return stepping(model, loss)


@enter
def speech_by_ctc() -> tuple[nn.Module, Step]:
    model = nn.ModuleList([nn.Conv1d(12, 24, 3, 2, 1), nn.GRU(24, 16, batch_first=True), nn.Linear(16, 10)])

    def loss() -> Tensor:
        frames = F.gelu(model[0](torch.randn(4, 12, 40))).transpose(1, 2)
        scores = model[2](model[1](frames)[0]).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, torch.randint(1, 10, (4, 6)), torch.full((4,), 20), torch.full((4,), 6))

    return stepping(model, loss)


class Quantized(nn.Module):
    """The nearest vector of a book that is averaged as training goes; gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(8, 16)
        self.book, self.uses = nn.Buffer(torch.randn(32, 8)), nn.Buffer(torch.ones(32))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        distance = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.book.t() + self.book.pow(2).sum(1)
        chosen = distance.argmin(1)
        found, hits = F.embedding(chosen, self.book), F.one_hot(chosen, 32).to(z.dtype)
        with torch.no_grad():
            self.uses.mul_(0.9).add_(hits.sum(0), alpha=0.1)
            self.book.lerp_((hits.t() @ z) / self.uses[:, None].clamp(min=1e-3), 0.1)
        return F.mse_loss(self.decode(z + (found - z).detach()), x) + 0.25 * F.mse_loss(z, found.detach())


@enter
def vector_quantization() -> tuple[nn.Module, Step]:
    model = Quantized()
    return stepping(model, lambda: model(torch.randn(64, 16)))


class Scan(nn.Module):
    """A selective state space model, its recurrence written out."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.pace = nn.Linear(16, 64), nn.Linear(32, 32)
        self.mix, self.narrow = nn.Linear(32, 16), nn.Linear(32, 16)
        self.decay = nn.Parameter(torch.arange(1, 9.0).log().repeat(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.wide(x).chunk(2, -1)
        u = F.silu(u)
        pace = F.softplus(self.pace(u))[..., None]
        into, out_of = self.mix(u).chunk(2, -1)
        kept, added = torch.exp(-pace * self.decay.exp()), pace * into[:, :, None] * u[..., None]
        state, seen = torch.zeros(x.shape[0], 32, 8), []
        for moment in range(x.shape[1]):
            state = kept[:, moment] * state + added[:, moment]
            seen.append((state * out_of[:, moment, None]).sum(-1))
        result: Tensor = self.narrow((torch.stack(seen, 1) + u) * F.silu(gate))
        return result


@enter
def selective_scan() -> tuple[nn.Module, Step]:
    model = Scan()
    return stepping(model, lambda: F.mse_loss(model(torch.randn(4, 12, 16)), torch.randn(4, 12, 16)))


def _transformers(name: str, config: str, settings: dict[str, Any], batch: Callable[[], dict[str, Any]]) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model = getattr(transformers, name)(getattr(transformers, config)(**settings)).train()
    return stepping(model, lambda: model(**batch()).loss)


@enter
def swin() -> tuple[nn.Module, Step]:
    settings = {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
        "num_labels": 5,
    }  # fmt: skip

    def batch() -> dict[str, Any]:
        return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 5, (2,))}

    return _transformers("SwinForImageClassification", "SwinConfig", settings, batch)


@enter
def mamba() -> tuple[nn.Module, Step]:
    settings = {"vocab_size": 50, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}

    def batch() -> dict[str, Any]:
        tokens = torch.randint(0, 50, (2, 10))
        return {"input_ids": tokens, "labels": tokens}

    return _transformers("MambaForCausalLM", "MambaConfig", settings, batch)
