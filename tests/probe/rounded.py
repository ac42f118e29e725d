"""Small models, and the reference that a dry run is held to: round the inputs, compute in float32, round the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

# What the models below call: matrix products, and what autocast protects.
_PRODUCTS = {torch.conv2d, F.linear, F.scaled_dot_product_attention, torch.matmul, Tensor.matmul, Tensor.__matmul__}
_PROTECTED = {F.layer_norm, F.softmax, torch.softmax, Tensor.softmax}


class Reference(TorchFunctionMode):
    """Autocast's rules for the calls of the models below, written down without a dispatcher."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            return rounded(func, self._dtype, *args, **kwargs)
        if func in _PROTECTED:
            return func(*(widened(one) for one in args), **{name: widened(one) for name, one in kwargs.items()})
        if func is F.cross_entropy:
            # It asks for log_softmax in the dtype of its input, and autocast leaves a dtype that is asked for.
            return F.nll_loss(_LogSoftmax.apply(args[0]).float(), args[1])  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


class _LogSoftmax(torch.autograd.Function):
    """Over dimension 1; backward knows the rounded result only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = torch.log_softmax(x.float(), 1).to(x.dtype)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        wide, (result,) = grads[0].float(), ctx.saved_tensors
        return (wide - result.float().exp() * wide.sum(1, keepdim=True)).to(result.dtype)


def rounded(func: Callable[..., Any], dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    """`func` in float32 between inputs and results in `dtype`."""

    def through(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(through, value))
        return value.to(dtype).float() if is_float(value) else value

    def narrow(value: Any) -> Any:
        return tuple(map(narrow, value)) if isinstance(value, (list, tuple)) else value.to(dtype)

    return narrow(func(*map(through, args), **{name: through(one) for name, one in kwargs.items()}))


def is_float(value: Any) -> bool:
    """A tensor that rounding concerns."""
    return isinstance(value, Tensor) and value.is_floating_point()


def widened(value: Any) -> Any:
    """In float32, if it is such a tensor."""
    return value.float() if is_float(value) else value


class Residual(nn.Module):
    """Convolutions, BatchNorm, in-place ReLU and `+=`."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.down, self.relu = nn.Conv2d(inside, outside, 1, 2), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        done: Tensor = self.relu(out)
        return done


def cnn() -> nn.Module:
    """Images of 3x16x16 to 10 classes."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    return nn.Sequential(
        stem, Residual(16, 24), Residual(24, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )


class Block(nn.Module):
    """Attention, by the fused function or written out, and a feed-forward layer."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 4, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = ((q @ k.transpose(-2, -1)) * (width // 4) ** -0.5).softmax(-1).to(v.dtype) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        mapped: Tensor = self.mlp(self.norm2(x))
        return x + mapped


class Transformer(nn.Module):
    """Tokens to the next token, of 65."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(65, 64), nn.Embedding(32, 64)
        self.blocks = nn.Sequential(Block(64, fused), Block(64, fused))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 65, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(tokens) + self.places.weight)))
        return logits.flatten(0, 1)


def images(number: int = 20) -> list[tuple[Tensor, Tensor]]:
    """Batches for `cnn`."""
    return [(torch.randn(16, 3, 16, 16), torch.randint(0, 10, (16,))) for _ in range(number)]


def texts(number: int = 20) -> list[tuple[Tensor, Tensor]]:
    """Batches for `Transformer`."""
    return [(torch.randint(0, 65, (8, 32)), torch.randint(0, 65, (256,))) for _ in range(number)]
