"""CUDA's rules on the CPU: what is cast, how it is rounded, what is refused, and that everything is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from amp_doctor.probe.dryrun import DryRun
from tests.probe.rounded import Reference, Transformer, cnn, images, rounded, texts
from tests.probe.test_cuda_rules import lists as lists  # noqa: PLC0414 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HALF, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def dry() -> Iterator[None]:
    with DryRun():
        yield


def same(left: Any, right: Any) -> bool:
    """Equal dtype and equal bits, NaN included."""
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if left is None or right is None:
        return left is right
    return left.dtype is right.dtype and torch.equal(left.nan_to_num(7e4), right.nan_to_num(7e4))


@pytest.mark.filterwarnings("ignore:torch.chain_matmul:UserWarning", "ignore:Using torch.cross:UserWarning")
@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("low", [HALF, BF16])
def test_every_operator_of_torchs_own_lists_returns_what_it_does_on_cuda(lists: Any, low: torch.dtype) -> None:
    nn_, linalg = torch._C._nn, torch._C._linalg  # type: ignore[attr-defined]
    groups: list[tuple[Any, Any, torch.dtype]] = [
        (lists.torch_fp16, torch, low),
        (lists.nn_fp16, nn_, low),
        (lists.linalg_fp16, linalg, low),
        (lists.methods_fp16, Tensor, low),
        (lists.torch_fp32, torch, FP32),
        (lists.nn_fp32, nn_, FP32),
        (lists.methods_fp32, Tensor, FP32),
        (lists.torch_need_autocast_promote, torch, FP32),
    ]
    wrong, checked = [], 0
    with torch.autocast("cuda", dtype=low):
        for entries, owner, expected in groups:
            for name, *rest in entries:
                # The lists give einsum matrices for four dimensions; cuDNN is not here.
                if name == "einsum" or name.startswith("cudnn"):
                    continue
                keywords = next((one for one in rest if isinstance(one, dict)), {})
                found = getattr(owner, name)(*rest[0], **keywords)
                found = found[0] if isinstance(found, (tuple, list)) else found
                if found.dtype is not expected:
                    wrong.append((name, found.dtype))
                checked += 1
        for name, arguments, *_ in lists.torch_expect_builtin_promote:
            if name != "equal":
                assert getattr(torch, name)(*arguments).dtype in (FP32, torch.bool), name
    assert wrong == []
    assert checked >= 95


@pytest.mark.usefixtures("dry")
def test_what_is_banned_fails_in_cudas_words() -> None:
    with (
        torch.autocast("cuda"),
        pytest.raises(RuntimeError, match=r"torch.nn.BCELoss are unsafe to autocast\.\nMany models use a sigmoid"),
    ):
        nn.BCELoss()(torch.rand(4), torch.rand(4))
    assert nn.BCELoss()(torch.rand(4), torch.rand(4)).dtype is FP32


def operands(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def _recurrent(function: Callable[..., Any], gates: int) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    x, h, c, *weights = operands(
        (5, 3, 8), (1, 3, 6), (1, 3, 6), (gates * 6, 8), (gates * 6, 6), (gates * 6,), (gates * 6,)
    )

    def call(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> Any:
        state = (h, c) if gates == 4 else h
        return function(x, state, list(weights), True, 1, 0.0, True, False, False)

    return call, (x, h, c, *weights)


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, operands((7, 33), (33, 5))),
    "matmul of four dimensions": (torch.matmul, operands((2, 3, 7, 33), (2, 3, 33, 5))),
    "bmm": (torch.bmm, operands((3, 7, 33), (3, 33, 5))),
    "mv": (torch.mv, operands((7, 33), (33,))),
    "addmm": (torch.addmm, operands((5,), (7, 33), (33, 5))),
    "baddbmm": (torch.baddbmm, operands((3, 7, 5), (3, 7, 33), (3, 33, 5))),
    "linear": (F.linear, operands((2, 7, 33), (5, 33), (5,))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), operands((3, 7, 33), (3, 5, 33))),
    "conv1d": (F.conv1d, operands((2, 3, 20), (5, 3, 3), (5,))),
    "conv2d": (F.conv2d, operands((2, 3, 12, 12), (5, 3, 3, 3), (5,))),
    "conv2d, same": (lambda x, w: F.conv2d(x, w, padding="same"), operands((2, 3, 12, 12), (5, 3, 3, 3))),
    "conv3d": (F.conv3d, operands((2, 3, 6, 6, 6), (4, 3, 3, 3, 3), (4,))),
    "conv_transpose2d": (F.conv_transpose2d, operands((2, 3, 6, 6), (3, 4, 3, 3), (4,))),
    "grouped conv2d": (lambda x, w: F.conv2d(x, w, groups=4), operands((2, 4, 9, 9), (8, 1, 3, 3))),
    "attention": (F.scaled_dot_product_attention, operands((2, 2, 9, 16), (2, 2, 9, 16), (2, 2, 9, 16))),
    "prelu": (F.prelu, operands((4, 3), (3,))),
    "lstm": _recurrent(torch._VF.lstm, 4),
    "gru": _recurrent(torch._VF.gru, 3),
    "rnn": _recurrent(torch._VF.rnn_tanh, 1),
    "lstm_cell": (
        lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w),
        operands((3, 8), (3, 6), (3, 6), (24, 8), (24, 6), (24,), (24,)),
    ),
    "gru_cell": (torch.gru_cell, operands((3, 8), (3, 6), (18, 8), (18, 6), (18,), (18,))),
}


def _outputs_and_gradients(call: Callable[..., Any], tensors: tuple[Tensor, ...]) -> tuple[Any, Any]:
    found = call(*tensors)
    outputs = found if isinstance(found, tuple) else (found,)
    loss = sum((one.float() * torch.linspace(-1, 1, one.numel()).view_as(one)).sum() for one in outputs)
    assert isinstance(loss, Tensor)
    return outputs, torch.autograd.grad(loss, tensors, allow_unused=True)


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("low", [HALF, BF16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_equal_the_reference_to_the_last_bit(name: str, low: torch.dtype) -> None:
    """Forward and backward, under autocast and between tensors that are half already."""
    call, tensors = PRODUCTS[name]
    expected = _outputs_and_gradients(lambda *args: rounded(call, low, *args), tensors)

    def under_autocast(*args: Tensor) -> Any:
        with torch.autocast("cuda", dtype=low):
            return call(*args)

    found = _outputs_and_gradients(under_autocast, tensors)
    assert same(found[0], expected[0])
    assert same(found[1], expected[1])
    small = tuple(one.detach().to(low).requires_grad_() for one in tensors)
    halves = _outputs_and_gradients(call, small)
    assert same(halves[0], expected[0])
    assert same(halves[1], [one if one is None else one.to(low) for one in expected[1]])


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[int], list[tuple[Tensor, Tensor]]]]] = {
    "cnn": (cnn, images),
    "transformer": (Transformer, texts),
    "transformer, attention written out": (lambda: Transformer(fused=False), texts),
}


def _step(model: nn.Module, batch: tuple[Tensor, Tensor], scale: float) -> tuple[Any, Any]:
    logits = model(batch[0])
    loss = F.cross_entropy(logits, batch[1])
    return (logits, loss), torch.autograd.grad(loss * scale, list(model.parameters()))


@pytest.mark.parametrize("low", [HALF, BF16])
@pytest.mark.parametrize("name", ZOO)
def test_models_equal_the_reference_to_the_last_bit(name: str, low: torch.dtype) -> None:
    make, batches = ZOO[name]
    torch.manual_seed(0)
    model, batch = make(), batches(1)[0]
    with Reference(low):
        expected = _step(model, batch, 1024.0)
    with DryRun():
        with torch.autocast("cuda", dtype=low):
            logits = model(batch[0])
            loss = F.cross_entropy(logits, batch[1])
        found = (logits, loss), torch.autograd.grad(loss * 1024.0, list(model.parameters()))
    assert logits.dtype is low
    assert loss.dtype is FP32
    assert same(found[0], expected[0])
    assert same(found[1], expected[1])


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("low", [HALF, BF16])
def test_what_has_half_kernels_on_cuda_only_and_on_the_cpu_only(low: torch.dtype) -> None:
    x = torch.rand(2, 3, 4, 4, 4).to(low)
    assert same(F.avg_pool3d(x, 2), F.avg_pool3d(x.float(), 2).to(low))
    assert same(torch.polygamma(1, x), torch.polygamma(1, x.float()).to(low))
    assert same(torch.round(x, decimals=1), torch.round(x.float(), decimals=1).to(low))
    calls: list[Callable[[], Tensor]] = [lambda: torch.angle(x), lambda: torch.igamma(x, x), lambda: torch.histc(x)]
    for refused in calls:
        with pytest.raises(NotImplementedError, match=r'^"(angle_cuda|igamma_cuda|histc)" not implemented for \''):
            refused()
    assert torch.angle(x.float()).dtype is FP32


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize("low", [HALF, BF16])
def test_what_rounds_on_the_way_on_the_cpu_rounds_once(low: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 8, 6, 6).to(low)
    assert same(x.log_softmax(1), x.float().log_softmax(1).to(low))
    assert same(F.log_softmax(x, 1, dtype=FP32), x.float().log_softmax(1))
    assert same(x.prod(1), x.float().prod(1).to(low))
    grid = (torch.rand(16, 4, 4, 2) * 2 - 1).to(low)
    assert same(
        F.grid_sample(x, grid, align_corners=False),
        F.grid_sample(x.float(), grid.float(), align_corners=False).to(low),
    )
    assert same(F.instance_norm(x), F.instance_norm(x.float()).to(low))
    layer, wide = nn.BatchNorm2d(8).to(low), nn.BatchNorm2d(8)
    assert same(layer(x), wide(x.float()).to(low))
    assert layer.running_mean is not None
    assert wide.running_mean is not None
    assert same(layer.running_mean, wide.running_mean.to(low))
    assert layer.num_batches_tracked == 1


@pytest.mark.usefixtures("dry")
def test_cross_entropy_of_half_logits_is_rounded_between_softmax_and_loss() -> None:
    """It asks for log_softmax in the dtype of the logits; torch.log_softmax alone is float32 under autocast."""
    torch.manual_seed(0)
    logits, target = torch.randn(64, 100).half().requires_grad_(), torch.randint(0, 100, (64,))
    with torch.autocast("cuda"):
        loss = F.cross_entropy(logits, target)
        assert torch.log_softmax(logits, 1).dtype is FP32
    rounded_ = torch.log_softmax(logits.float(), 1).half().detach()
    assert same(loss.detach(), F.nll_loss(rounded_.float(), target))
    (gradient,) = torch.autograd.grad(loss * 1024, logits)
    onto = F.one_hot(target, 100) * -16.0
    assert same(gradient, (onto - rounded_.float().exp() * onto.sum(1, keepdim=True)).half())


@pytest.mark.usefixtures("dry")
def test_gradients_of_a_weight_used_twice_add_up_in_half_as_autocasts_cache_has_it() -> None:
    weight = torch.full((1, 1), 1.0, requires_grad=True)
    inputs = torch.tensor([[2048.0]]), torch.tensor([[1.0]])
    with torch.autocast("cuda"):
        total = sum((one @ weight).float() for one in inputs)
    assert isinstance(total, Tensor)
    total.backward()  # 2049 is no half
    assert weight.grad is not None
    assert weight.grad.item() == 2048.0
    weight.grad = None
    with torch.autocast("cuda", cache_enabled=False):
        total = sum((one @ weight).float() for one in inputs)
    assert isinstance(total, Tensor)
    total.backward()
    assert torch.equal(torch.as_tensor(weight.grad), torch.tensor([[2049.0]]))


@pytest.mark.usefixtures("dry")
def test_the_cache_of_weights_ends_with_its_region() -> None:
    layer = nn.Linear(2, 2, bias=False)
    results = []
    for value in (1.0, 2.0):
        with torch.no_grad():
            layer.weight.fill_(value)
        with torch.autocast("cuda"):
            results.append(layer(torch.ones(1, 2))[0, 0].item())
    assert results == [2.0, 4.0]


@pytest.mark.usefixtures("dry")
def test_in_place_and_out_variants_and_float64_are_left_alone() -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    exact = a @ b
    with torch.autocast("cuda"):
        assert same(torch.mm(a, b, out=torch.empty(3, 3)), exact)
        assert same(torch.zeros(3, 3).addmm_(a, b), exact)
        assert (a.double() @ b.double()).dtype is FP64
        with torch.autocast("cuda", enabled=False):
            assert same(a @ b, exact)
        assert torch.tensor([7e4]).to(HALF).isinf().all()
        assert (torch.full((1, 1), 300.0) @ torch.full((1, 1), 300.0)).isinf().all()


@pytest.mark.usefixtures("dry")
@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (nn.LSTM(8, 8, 2, bidirectional=True), (5, 3, 8), HALF),
        (nn.GRU(8, 8), (5, 3, 8), HALF),
        (nn.MultiheadAttention(8, 2), (5, 3, 8), HALF),
        (nn.TransformerEncoderLayer(8, 2, 16), (5, 3, 8), FP32),
        (nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), (3, 8), FP32),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), (1, 3, 6, 6), FP32),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 6, 6), HALF),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else None,
)
def test_modules_return_what_they_return_on_cuda(module: nn.Module, shape: tuple[int, ...], expected: Any) -> None:
    x = torch.randn(shape, requires_grad=True)
    with torch.autocast("cuda", dtype=HALF):
        found = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
    found = found[0] if isinstance(found, tuple) else found
    assert found.dtype is expected
    found.float().square().sum().backward()
    assert {one.grad.dtype for one in module.parameters() if one.grad is not None} == {FP32}


def test_outside_autocast_float32_keeps_every_bit() -> None:
    torch.manual_seed(0)
    model, batch = Transformer(), texts(1)[0]
    plain = _step(model, batch, 1.0)
    with DryRun():
        assert same(_step(model, batch, 1.0), plain)


def test_dry_runs_nest() -> None:
    x = torch.ones(2, 2)
    with DryRun():
        with torch.autocast("cuda"):
            with DryRun():
                assert (x @ x).dtype is HALF
            assert (x @ x).dtype is HALF
        assert torch.zeros(1, device="cuda").is_cuda
    assert not torch.cuda.is_available()
    with torch.autocast("cpu", dtype=BF16):
        assert (x @ x).dtype is BF16


def test_nothing_is_left_behind() -> None:
    before = [dict(vars(owner)) for owner in (torch, torch.cuda, Tensor, torch.amp.autocast_mode.autocast)]
    run = DryRun()
    run.start()
    assert torch.cuda.is_available()
    run.stop()
    run.stop()
    after = [dict(vars(owner)) for owner in (torch, torch.cuda, Tensor, torch.amp.autocast_mode.autocast)]
    for left, right in zip(before, after, strict=True):
        assert {name for name in left if left[name] is not right.get(name)} == set()
        assert left.keys() == right.keys()
    assert not torch._C._dispatch_tls_is_dispatch_key_included("AutocastCUDA")
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
    assert (torch.randn(2, 2).half() @ torch.randn(2, 2).half()).dtype is HALF
