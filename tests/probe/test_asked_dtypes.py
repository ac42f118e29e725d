"""A dtype that a script reads from a tensor follows that tensor in a replay; one that it names does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor, nn

from amp_doctor.probe.exact import replay_exactly
from amp_doctor.probe.precisions import O1_FP16, PRECISIONS
from amp_doctor.probe.replay import replay
from tests.probe.test_record import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.recorded import Recording

ROWS = torch.arange(16) // 2


def method(h: Tensor, n: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(0, ROWS, n.to(h.dtype))


def keyword(h: Tensor, n: Tensor) -> Tensor:
    return torch.zeros(16, 8, dtype=n.dtype, device=n.device).index_add(0, ROWS, n)


def old_cast(h: Tensor, n: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(0, ROWS, n.type(h.dtype))


def other(h: Tensor, n: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(0, ROWS, n.type_as(h))


def name(h: Tensor, n: Tensor) -> Tensor:
    dtype = h.dtype
    n = n.to(torch.float32) * 2
    return torch.zeros(16, 8, dtype=dtype).index_add(
        0,
        ROWS,
        n.to(dtype),
    )


def functional(h: Tensor, n: Tensor) -> Tensor:
    return torch.zeros_like(h).scatter_add(1, ROWS.expand(4, 16).reshape(8, 8) % 8, F.softmax(n, -1, dtype=h.dtype)[:8])


FOLLOWS = (method, keyword, old_cast, other, name, functional)


def recorded(used: Callable[[Tensor, Tensor], Tensor]) -> Recording:
    torch.manual_seed(0)
    layer, norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def step() -> None:
        h = layer(torch.randn(16, 8))
        (used(h, norm(h)) + h).square().mean().backward()

    return record(step)


@pytest.mark.parametrize("used", FOLLOWS, ids=lambda one: one.__name__)
def test_a_dtype_that_was_read_is_that_of_the_tensor(used: Callable[[Tensor, Tensor], Tensor]) -> None:
    recording = recorded(used)
    assert replay_exactly(recording).exact
    for precision in PRECISIONS:
        replayed = replay(recording, precision, scale=64.0)
        assert [one.refused for one in replayed.nodes if one.refused] == []
        assert replayed.gradient_error < 0.05


def test_a_dtype_that_is_named_is_a_constant() -> None:
    def used(h: Tensor, n: Tensor) -> Tensor:
        return h.to(torch.float32) if h.dtype != torch.float64 else h

    (cast,) = (one for one in replay(recorded(used), O1_FP16).nodes if one.node.name == "to")
    assert cast.dtype is torch.float32


def test_a_dtype_that_an_inner_call_reads_is_not_that_of_the_outer() -> None:
    def used(h: Tensor, n: Tensor) -> Tensor:
        return F.softmax(dtype=torch.float32, input=n.to(h.dtype), dim=-1)

    dtypes = {one.node.name: one.dtype for one in replay(recorded(used), O1_FP16).nodes}
    assert dtypes["to"] is torch.float16
    assert dtypes["softmax"] is torch.float32


def test_a_cast_within_an_expression_leaves_the_tensor_what_it_was() -> None:
    def used(h: Tensor, n: Tensor) -> Tensor:
        level = h.float().square().mean()
        return h / (h.abs().amax(1, keepdim=True) + 1e-8) + level

    recording = recorded(used)
    assert replay_exactly(recording).exact
    dtypes = {one.node.name: one.dtype for one in replay(recording, O1_FP16).nodes}
    assert dtypes["float_1"] is dtypes["square"] is torch.float32
    assert dtypes["abs_1"] is dtypes["amax"] is torch.float16


def by_both_names(h: Tensor, n: Tensor) -> Tensor:
    z = h.float()
    return h / (h.abs().amax(1, keepdim=True) + 1e-8) + z.square()


def handed_on(h: Tensor, n: Tensor) -> Tensor:
    z = h.to(torch.float32)

    def inside(x: Tensor) -> Tensor:
        return x.abs().amax(1, keepdim=True)

    return inside(h) + inside(z).square()


@pytest.mark.parametrize("used", [by_both_names, handed_on], ids=lambda one: one.__name__)
def test_a_cast_under_another_name_leaves_the_old_one_what_it_was(used: Callable[[Tensor, Tensor], Tensor]) -> None:
    recording = recorded(used)
    assert replay_exactly(recording).exact
    dtypes = {one.node.name: one.dtype for one in replay(recording, O1_FP16).nodes}
    assert dtypes["abs_1"] is dtypes["amax"] is torch.float16
    assert dtypes["square"] is torch.float32


def test_a_name_that_is_none_of_the_two_is_that_of_the_cast() -> None:
    def used(h: Tensor, n: Tensor) -> Tensor:
        z = h.float()
        both = {"z": z}
        h = n
        return both["z"].abs() + h.square()

    dtypes = {one.node.name: one.dtype for one in replay(recorded(used), O1_FP16).nodes}
    assert dtypes["abs_1"] is torch.float32


def test_a_cast_that_takes_the_name_is_the_tensor_from_then_on() -> None:
    def used(h: Tensor, n: Tensor) -> Tensor:
        h = h.float()
        return h / (h.abs().amax(1, keepdim=True) + 1e-8)

    dtypes = [one.dtype for one in replay(recorded(used), O1_FP16).nodes if one.node.name in ("abs_1", "amax")]
    assert dtypes == [torch.float32] * 2
