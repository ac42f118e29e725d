"""A recorded step under other precisions: the operator that goes wrong is named with its line, and healthy ones are not."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from amp_doctor.probe import Probe
from amp_doctor.probe.examine import examine
from amp_doctor.probe.graph_calls import name_of
from amp_doctor.probe.keeping import within
from amp_doctor.probe.precisions import O1_BF16, O1_FP16, O2_FP16, O3_FP16, PRECISIONS, WRITTEN
from amp_doctor.probe.replay import replay
from amp_doctor.probe.troubles import BESIDE, troubles
from tests.probe import layered_illnesses, operator_illnesses
from tests.probe.operator_illnesses import ILLNESSES
from tests.probe.recorded_zoo_more import ZOO
from tests.probe.test_record import prepared, record

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = Path(operator_illnesses.__file__).read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", ILLNESSES)
def test_the_ill_operator_is_first_or_second_with_its_line(name: str) -> None:
    precision, named, step = ILLNESSES[name]
    found = examine(record(step), seconds=60).operators
    assert found[0].precision == precision
    assert any(
        one.operator.removesuffix(" (input)").strip("_") in {other.strip("_") for other in named}
        and one.source is not None
        and LINES[one.source.line - 1].endswith("# ILL")
        for one in found[:2]
    ), found


@pytest.mark.parametrize("name", layered_illnesses.ILLNESSES)
def test_it_is_inside_a_model_as_well(name: str) -> None:
    named, make = layered_illnesses.ILLNESSES[name]
    torch.manual_seed(0)
    found = examine(record(make()), seconds=60).operators
    lines = Path(layered_illnesses.__file__).read_text("utf-8").splitlines()
    told = [
        (one.operator.removesuffix(" (input)").strip("_"), lines[one.source.line - 1].endswith("# ILL"))
        for one in found[:2]
        if one.source is not None
    ]
    assert set(told) & {(other, True) for other in named}, found


@pytest.mark.parametrize("name", ZOO)
def test_a_healthy_step_has_no_trouble_under_autocast(name: str) -> None:
    _, step = prepared(name)
    recording = record(step)
    for precision in (O1_FP16, O1_BF16, WRITTEN):
        replayed = replay(recording, precision, scale=4096.0)
        assert troubles(replayed) == ()
        assert within(replayed)


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda one: one.name)
def test_every_precision_runs_a_convolutional_and_a_recurrent_step(precision: object) -> None:
    for name in ("unet", "diffusion", "lstm", "llama"):
        _, step = prepared(name)
        replayed = replay(record(step), precision, scale=256.0)  # type: ignore[arg-type]
        assert replayed.gradient_error < 0.1
        assert not [one.refused for one in replayed.nodes if one.refused]


def two_layers() -> tuple[nn.Module, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))

    def step() -> None:
        model(torch.randn(8, 16)).logsumexp(1).sum().backward()

    return model, step


def test_dtypes_are_those_that_cuda_would_give() -> None:
    _, step = two_layers()
    recording = record(step)  # type: ignore[arg-type]
    expected = {
        O1_FP16: ["float16", "float32", "float32", "float16", "float32", "float32"],
        O1_BF16: ["bfloat16", "float32", "float32", "bfloat16", "float32", "float32"],
        O2_FP16: ["float16"] * 6,
        O3_FP16: ["float16"] * 6,
    }
    for precision, dtypes in expected.items():
        nodes = replay(recording, precision).nodes[1:]
        assert [name_of(one.node) for one in nodes] == ["linear", "layer_norm", "gelu", "linear", "logsumexp", "sum"]
        assert [str(one.dtype).removeprefix("torch.") for one in nodes] == dtypes


def test_flops_and_casts_are_counted() -> None:
    _, step = two_layers()
    nodes = {one.node.name: one for one in replay(record(step), O1_FP16).nodes}  # type: ignore[arg-type]
    assert nodes["linear"].flops == 2 * 8 * 16 * 32
    assert nodes["linear_1"].flops == 2 * 8 * 32 * 4
    assert nodes["linear"].casts == 3
    assert nodes["layer_norm"].casts == 1
    assert nodes["gelu"].casts == 0


def test_what_must_stay_in_float32_is_found_by_trying() -> None:
    _, _, step = ILLNESSES["logits_scaled_late"]
    kept = examine(record(step), seconds=60).kept
    assert kept is not None
    assert [one.operator for one in kept] == ["matmul"]


def test_a_healthy_step_needs_nothing_in_float32() -> None:
    _, step = prepared("bert")
    assert examine(record(step), seconds=60).kept == ()


def test_a_replay_that_takes_too_long_is_given_up_with_a_note() -> None:
    _, step = prepared("bert")
    examined = examine(record(step), seconds=-1)
    assert examined.operators == ()
    assert any("time was up" in note for note in examined.notes)


def test_a_replay_leaves_no_trace() -> None:
    model, step = prepared("resnet")
    recording = record(step)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    examine(recording, seconds=60)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        torch.equal(a, b)
        for a, b in zip(grads, (p.grad for p in model.parameters() if p.grad is not None), strict=True)
    )
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    assert not torch.is_autocast_enabled("cuda")


def test_what_is_added_to_larger_values_is_not_missed() -> None:
    """As mixup does with a share close to one."""

    def step() -> None:
        torch.manual_seed(0)
        x = nn.Linear(8, 8)(torch.randn(16, 8))
        (x * (1 - 1e-6) + x.flip(0) * 1e-6).square().mean().backward()

    assert examine(record(step), seconds=60).operators == ()


def test_the_lowest_number_of_a_dtype_is_another_in_half() -> None:
    """As transformers masks attention."""

    def step() -> None:
        torch.manual_seed(0)
        x = nn.Linear(8, 8)(torch.randn(16, 8))
        scores = x @ x.T
        hidden = torch.ones(16, 16).triu(1) > 0
        lowest = torch.finfo(scores.dtype).min
        filled = scores.masked_fill(hidden, lowest).softmax(-1) @ x
        (filled + torch.where(hidden, lowest, scores).softmax(-1) @ x).square().sum().backward()

    examined = examine(record(step), seconds=60)
    assert examined.operators == ()
    assert all(one.gradient_error is not None and one.gradient_error < 0.05 for one in examined.outcomes)


def test_what_is_drawn_in_half_is_what_was_drawn_in_float32() -> None:
    """Releases such as torch 2.4 draw other numbers in half: another path would be dropped, other noise added."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)

    def step() -> None:
        x = torch.randn(64, 6, 8)
        h = first(x)
        kept = (0.7 + torch.rand((64, 1, 1), dtype=h.dtype, device=h.device)).floor_()
        (x + second(h + 0.1 * torch.randn_like(h)).div(0.7) * kept).square().mean().backward()

    for precision in (O1_FP16, O1_BF16, O3_FP16):
        assert troubles(replay(record(step), precision, scale=4096.0)) == ()


@pytest.mark.parametrize("clamped", [False, True])
def test_the_outcome_is_that_of_a_step_in_which_no_infinity_is_replaced(clamped: bool) -> None:
    """Each operator is judged as if those before it had given what they should; the step ends as it would end."""

    def step() -> None:
        torch.manual_seed(0)
        x = nn.Linear(8, 8)(torch.randn(16, 8))
        large = (300 * x) * (300 * x)
        out = large.clamp(max=40_000) if clamped else large * 1e-4
        out.mean().backward()

    examined = examine(record(step), seconds=60)
    half = examined.outcomes[0]
    assert half.precision == "O1/float16"
    assert half.overflows == 1
    assert isfinite(half.loss_error) == clamped
    assert isfinite(half.gradient_error or 0.0) == clamped


def test_of_a_run_that_breaks_at_once_the_first_step_is_replayed() -> None:
    """A model in half whose exponential overflows: from its second step on there is nothing but NaN."""

    class Gate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = torch.exp(x)
            return weights / weights.sum(-1, keepdim=True)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Gate(), nn.Linear(8, 2)).half()
    with torch.no_grad():
        model[0].bias[0] = 13  # type: ignore[operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probe(steps=4) as probe:
        while True:
            optimizer.zero_grad()
            model(torch.randn(8, 4).half()).float().square().mean().backward()
            optimizer.step()
    assert probe.profile is not None
    worst = probe.profile.operators[0]
    assert (worst.operator, worst.trouble, worst.layer) == ("exp", "overflow", "1")
    assert probe.profile.first_nonfinite is not None
    assert (probe.profile.first_nonfinite.step, probe.profile.first_nonfinite.layer) == (1, "1")


def fast_norm(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    square = (x * x).mean(-1, keepdim=True)
    variance = square - mean * mean
    return (x - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-3)


def weighted_mean(x: torch.Tensor) -> torch.Tensor:
    weights = torch.relu(x.view(32, 4, 16)) * 1e-3
    return (weights * x.view(32, 4, 16).tanh()).mean(1) / (weights.mean(1) + 1e-10)


@pytest.mark.parametrize(("used", "gives_it"), [(fast_norm, {"mul", "mean"}), (weighted_mean, {"mul", "mean"})])
def test_what_feeds_the_operator_that_goes_wrong_joins_it_in_fp32(
    used: Callable[[torch.Tensor], torch.Tensor], gives_it: set[str]
) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(10, 64), nn.LazyLinear(1)
    nn.init.constant_(first.bias, 24.0 if used is fast_norm else 0.0)
    x = torch.randn(32, 10)

    def step() -> None:
        last(used(first(x))).square().mean().backward()

    step()
    examined = examine(record(step), seconds=60)
    assert examined.kept
    joined = {one.operator for one in examined.kept if one.trouble == BESIDE}
    assert joined
    assert joined <= gives_it
    assert len(examined.kept) <= 4
