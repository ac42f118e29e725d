"""What a GPU refuses in half, and what only a CPU does: constants, kernels, Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn

from amp_doctor.probe import examine as examination
from amp_doctor.probe import keeping
from amp_doctor.probe.examine import examine
from amp_doctor.probe.precisions import O1_BF16, O1_FP16
from amp_doctor.probe.replay import replay
from tests.probe.test_record import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.precisions import Precision
    from amp_doctor.probe.recorded import Recording
    from amp_doctor.probe.replayed import Replayed

    Used = Callable[[Tensor], Tensor]


def recorded(used: Used) -> Recording:
    """`used` is given the output of a linear layer, 16 by 32, half under O1."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 32)

    def step() -> None:
        used(layer(torch.randn(16, 8))).float().square().mean().backward()

    return record(step)


def refused(used: Used) -> list[tuple[str, str]]:
    replayed = replay(recorded(used), O1_FP16, scale=64.0)
    return [(str(one.node.name), one.refused) for one in replayed.nodes if one.refused]


def spectrum(h: Tensor) -> Tensor:
    return torch.fft.rfft(h, dim=1).real


def there_and_back(h: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(h, 64), 64)[:, :32]


def both_dimensions(h: Tensor) -> Tensor:
    return torch.fft.fftn(h, dim=(0, 1)).real + torch.fft.fft2(h).imag


@pytest.mark.parametrize("used", [spectrum, there_and_back, both_dimensions], ids=lambda one: one.__name__)
def test_transforms_of_a_power_of_two_are_taken_in_half(used: Used) -> None:
    recording = recorded(used)
    replayed = replay(recording, O1_FP16, scale=64.0)
    assert [one.refused for one in replayed.nodes if one.refused] == []
    assert replayed.gradient_error < 0.02
    assert any("BFloat16" in one.refused for one in replay(recording, O1_BF16).nodes)


def test_transforms_of_other_lengths_are_refused_in_the_words_of_cufft() -> None:
    lengths: dict[str, Used] = {
        "[31]": lambda h: torch.fft.rfft(h[:, :31]).real,
        "[48]": lambda h: torch.fft.fft(h, 48).real,
        "[15, 32]": lambda h: torch.fft.fft2(h[:15]).real,
        "[16, 12]": lambda h: torch.fft.fftn(h, s=(16, 12)).real,
    }
    for length, used in lengths.items():
        [(_, words)] = refused(used)
        assert words.startswith("cuFFT only supports dimensions whose sizes are powers of two")
        assert words.endswith(f"a signal size of {length}")


WRITES: tuple[Used, ...] = (
    lambda h: h.masked_fill(h > 0, -1e9),
    lambda h: torch.where(h > 0, h, torch.full_like(h, -1e9)),
    lambda h: F.pad(h, (0, 1), value=-1e9),
    lambda h: h.index_fill(0, torch.tensor([1]), 1e6),
    lambda h: torch.linalg.inv(h[:, :16]),
    lambda h: torch.linalg.qr(h)[0],
)
COMPUTES: tuple[Used, ...] = (
    lambda h: h.clamp(-1e9, 1e9),
    lambda h: F.hardtanh(h, -1e6, 1e6),
    lambda h: torch.add(h, 1e-9 * h, alpha=1e6),
    lambda h: torch.linalg.inv(h[:, :16].float()),
    lambda h: h.clamp(max=1e4),
)


@pytest.mark.parametrize("used", WRITES)
def test_what_a_gpu_refuses_is_refused(used: Used) -> None:
    assert len(refused(used)) == 1
    [operator] = [one for one in examine(recorded(used), seconds=60).operators if one.precision == "O1/float16"]
    assert operator.trouble == "unsupported"


@pytest.mark.parametrize("used", COMPUTES)
def test_what_only_a_cpu_refuses_is_computed(used: Used) -> None:
    assert refused(used) == []


def test_a_mixture_of_dtypes_is_told_from_what_has_no_half() -> None:
    rows = torch.arange(16) // 2
    recording = recorded(lambda h: torch.zeros(8, 32).index_add(0, rows, h))
    [operator] = examine(recording, seconds=60).operators[:1]
    assert (operator.operator, operator.trouble) == ("index_add", "mixed")


def added(h: Tensor, bias: Tensor) -> Tensor:
    scores = h * 0.5
    scores += bias  # in half, whatever the bias is
    return scores


SHOWN: Tensor = torch.ones(16, 32).tril(8) > 0
SHARES = torch.softmax
MASKS: dict[str, Used] = {
    "by where": lambda h: SHARES(torch.where(SHOWN, h, -1e9), -1) @ h.T,
    "scaled": lambda h: SHARES(torch.where(SHOWN, h, -1e9) * 0.5, -1) @ h.T,
    "added": lambda h: SHARES(h + ((~SHOWN).float() * -1e9).to(h.dtype), -1) @ h.T,
    "added to the logits": lambda h: SHARES(added(h, (~SHOWN).float() * -1e9), -1) @ h.T,
    "subtracted": lambda h: SHARES(h - 1e30 * (~SHOWN).to(h.dtype), -1) @ h.T,
    "by hand": lambda h: (torch.where(SHOWN, h, -1e9) - h.amax(1, keepdim=True)).exp() @ h.T,
}


@pytest.mark.parametrize("used", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("whole", [False, True], ids=["some of a row", "a whole row"])
def test_a_mask_is_an_overflow_only_where_it_hides_everything(
    used: Used, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    shown = SHOWN.clone()
    shown[3] = not whole
    monkeypatch.setitem(globals(), "SHOWN", shown)
    examined = examine(recorded(used), seconds=60)
    worst = examined.operators[0]
    by_hand = used is MASKS["by hand"]  # the maximum of the row is that of what was hidden, too
    assert worst.trouble == ("overflow" if whole and not by_hand else "mask")
    assert worst.operator in ("where", "to", "add", "add_", "iadd", "mul", "rmul")
    assert bool(examined.kept) == (whole and not by_hand)


def test_a_precision_that_this_cpu_cannot_compute_is_noted_and_the_others_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scaled = keeping.scaled

    def without_bfloat16(recording: Recording, precision: Precision, *args: Any, **kwargs: Any) -> Replayed:
        if precision is O1_BF16:
            raise NotImplementedError("no such kernel\nand more words")
        return scaled(recording, precision, *args, **kwargs)

    monkeypatch.setattr(examination, "scaled", without_bfloat16)
    examined = examine(recorded(lambda h: h.tanh()), seconds=60)
    assert examined.notes == ("the recorded step could not be replayed under O1/bfloat16: no such kernel",)
    assert [one.precision for one in examined.outcomes] == ["O1/float16", "O2/float16", "O3/float16"]


def test_a_backward_pass_is_none_of_the_autocast_region() -> None:
    """The sums in it are not in FP32 as those of a region are: batch norm is handed a gradient in half."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8))
    weight = torch.randn(8, 3)

    def step() -> None:
        (model(torch.randn(4, 4, 16)).permute(2, 0, 1) @ weight).float().square().mean().backward()

    recording = record(step)
    for precision, dtype in ((O1_FP16, torch.float16), (O1_BF16, torch.bfloat16)):
        replayed = replay(recording, precision)
        assert replayed.gradient_error < 0.02
        assert [one.dtype for one in replayed.nodes if one.node.name == "batch_norm"] == [dtype]


def test_sparse_gradients_are_compared() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(20, 8, sparse=True)

    def step() -> None:
        (table(torch.tensor([[1, 2], [3, 4]])) @ torch.randn(8, 3)).square().mean().backward()

    [(_, compared)] = replay(record(step), O1_FP16, scale=64.0).gradients
    assert 0 < compared.error < 0.01


def test_what_is_infinite_in_float32_as_well_is_no_mask_of_the_rest() -> None:
    """The logarithm of one minus a gate that has saturated: half has saturated earlier."""

    def log_of_the_rest(h: Tensor) -> Tensor:
        p = torch.sigmoid(h * 30)
        return torch.log1p(-p + 1e-9).clamp(min=-100)

    found = [one.trouble for one in examine(recorded(log_of_the_rest), seconds=60).operators if one.operator == "log1p"]
    assert "mask" not in found
    assert "overflow" in found


def test_the_lowest_number_of_a_half_tensor_is_that_of_half() -> None:
    """As GPT-Neo makes a tensor of it, which in FP16 is the lowest of FP16."""

    def filled(h: Tensor) -> Tensor:
        lowest = torch.tensor(torch.finfo(h.dtype).min, dtype=h.dtype)
        return torch.where(SHOWN, h, lowest).softmax(-1) @ h.T

    assert examine(recorded(filled), seconds=60).operators == ()


def test_a_number_beside_the_model_stays_what_it_is_in_half() -> None:
    """As the scale of a GradScaler, 65536, which FP16 does not have."""
    scale = torch.tensor(65536.0)
    assert examine(recorded(lambda h: (h.mean() * scale) / scale), seconds=60).operators == ()


POSITIONS: dict[str, tuple[str, Callable[[int], Tensor]]] = {
    "arange": ("arange", lambda n: torch.arange(n, dtype=torch.float16)),
    "cast": ("half", lambda n: torch.arange(n).half()),
    "offset": ("add", lambda n: torch.arange(n) + torch.zeros(n, dtype=torch.float16)),
    "from a column": ("to", lambda n: torch.arange(n)[:, None].to(torch.float16)[:, 0]),
    "falling": ("half", lambda n: torch.arange(n).flip(0).half()),
    "bfloat16": ("arange", lambda n: torch.arange(n // 8, dtype=torch.bfloat16).repeat(8)[:n]),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_that_half_cannot_tell_apart_are_named(name: str) -> None:
    operator, positions = POSITIONS[name]

    def step(n: int) -> Callable[[Tensor], Tensor]:
        return lambda h: (positions(n) * 0.001).sin()[: n // 64] * h[0, 0]

    found = examine(recorded(step(4096)), seconds=60).operators
    assert [(one.operator, one.trouble, one.lost > 0.2) for one in found[:1]] == [(operator, "collapse", True)]
    assert examine(recorded(step(2048)), seconds=60).operators == ()


def test_integers_and_what_follows_a_half_model_are_told_apart() -> None:
    whole = recorded(lambda h: torch.arange(4096)[:1] * h + h[:, :1] * torch.arange(4096)[None, :32])
    assert examine(whole, seconds=60).operators == ()
    follows = recorded(lambda h: (torch.arange(4096, dtype=h.dtype) * 1e-3).cos()[:32] * h)
    found = examine(follows, seconds=60).operators
    assert [(one.operator, one.trouble, one.precision) for one in found[:1]] == [("arange", "collapse", "O1/float16")]
    made_half = recorded(lambda h: (torch.arange(4096.0) * 1e-3).cos()[:32] * h)
    found = examine(made_half, seconds=60).operators
    assert [(one.operator, one.trouble, one.precision) for one in found[:1]] == [("arange", "collapse", "O2/float16")]


def test_a_move_is_not_what_loses() -> None:
    """Indices may differ in half, as those of a router do: what is gathered by them is another, and nothing is lost."""

    def routed(h: Tensor) -> Tensor:
        order = (h.float() * 1e3).frac().argsort(0)
        return h.gather(0, order)[order[0]] + h.index_select(0, order[:, 0])[:1]

    def added(h: Tensor) -> Tensor:
        order = (h.float() * 1e3).frac().argsort(0)[:, 0]
        return torch.zeros(16, 32).index_add_(0, order, h.float()) + h

    for used in (routed, added):
        assert [one.operator for one in examine(recorded(used), seconds=60).operators] in ([], ["frac"])
