"""The state of random numbers is kept for every call that draws some, and only looked at for those that may."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

from amp_doctor.probe.exact import replay_exactly
from amp_doctor.probe.precisions import O1_FP16
from amp_doctor.probe.random_calls import may_draw
from amp_doctor.probe.replay import replay
from tests.probe.test_record import record

DRAWS = (
    torch.dropout, torch.rand, torch.randn_like, torch.bernoulli, torch.multinomial, torch.Tensor.normal_,
    torch.Tensor.uniform_, torch.Tensor.exponential_, torch.normal, torch.poisson, torch.randperm, torch._VF.lstm,
    F.dropout, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, F.rrelu, F.gumbel_softmax,
    F.fractional_max_pool2d, F.multi_head_attention_forward, F.scaled_dot_product_attention,
)  # fmt: skip
DETERMINISTIC = (
    F.linear, F.relu, F.cross_entropy, F.layer_norm, F.conv2d, torch.matmul, torch.Tensor.add, torch.Tensor.__add__,
    torch.exp, torch.cat, torch.Tensor.view, F.gelu, F.softmax,
)  # fmt: skip


@pytest.mark.parametrize("function", DRAWS, ids=lambda one: one.__name__)
def test_what_draws_may_draw(function: object) -> None:
    assert may_draw(function)


@pytest.mark.parametrize("function", DETERMINISTIC, ids=lambda one: one.__name__)
def test_what_is_deterministic_may_not(function: object) -> None:
    assert not may_draw(function)


def test_what_nobody_knows_may_draw() -> None:
    assert may_draw(lambda: None)
    assert may_draw(nn.init.kaiming_uniform_)


def test_numbers_drawn_between_the_calls_that_are_seen_are_made_up_for() -> None:
    layer = nn.Linear(8, 8)

    def step() -> None:
        hidden = F.dropout(layer(torch.ones(4, 8)), 0.5)
        torch.default_generator.manual_seed(7)
        with torch._C.DisableTorchFunction():
            torch.rand(3)
        F.dropout(hidden.relu(), 0.5).sum().backward()

    assert replay_exactly(record(step)).exact


def test_what_follows_an_optimizers_step_is_seen_again() -> None:
    layers = [nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in layers]

    def step() -> None:
        for number, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            (layers[1](layers[0](torch.ones(2, 4))).tanh() * (number + 1)).sum().backward()
            optimizer.step()

    recording = record(step)
    assert len(recording.losses) == 2
    assert [node.target for node in recording.graph_module.graph.nodes].count("tanh") == 2
    assert not [node for node in recording.graph_module.graph.nodes if "foreach" in node.name]
    assert replay_exactly(recording).exact


def test_a_generator_of_the_scripts_own_draws_the_same_again_and_is_left_alone() -> None:
    own = torch.Generator().manual_seed(1)
    layer, noise = nn.Linear(4, 4), torch.zeros(6, 4)

    def step() -> None:
        x = torch.rand(6, 4, generator=own)
        noise.normal_(generator=own)
        order = torch.randperm(6, generator=own)
        drawn = torch.multinomial(torch.ones(4), 3, generator=own)
        hidden = F.dropout(layer(x + noise)[order], 0.5)
        torch.index_select(hidden, 1, drawn).square().sum().backward()

    step()
    recording = record(step)
    after = own.get_state()
    for _ in range(2):
        assert replay_exactly(recording).different == ()
    assert replay(recording, O1_FP16).gradient_error < 0.01
    assert torch.equal(own.get_state(), after)


def test_the_default_generator_by_its_name_is_the_default_one() -> None:
    layer = nn.Linear(4, 4)

    def step() -> None:
        hidden = layer(torch.rand(6, 4, generator=torch.default_generator))
        F.dropout(hidden, 0.5).sum().backward()

    assert replay_exactly(record(step)).exact
