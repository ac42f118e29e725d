"""What scripts for CUDA do less often: numbers for devices, products into a tensor that is there, SyncBatchNorm."""

from __future__ import annotations

import pickle
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn, profiler

from amp_doctor.probe.dryrun import DryRun
from tests.probe.running import plain, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
DEVICE = torch.device


@pytest.fixture(autouse=True)
def _dry() -> Iterator[None]:
    with DryRun():
        yield


# --- devices by number ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [lambda: torch.device(0), lambda: torch.device("cuda", 0), lambda: 0])
def test_a_number_is_a_gpu(device: Any) -> None:
    place = device()
    made = [
        torch.zeros(1, device=place),
        torch.zeros(1).to(place),
        torch.zeros(1).to(device=place),
        torch.zeros(1).cuda(place),
        nn.Linear(1, 1).cuda(place).weight,
        nn.Linear(1, 1).to(place).weight,
        torch.randn(1, generator=torch.Generator(place), device=place),
    ]
    assert all(one.is_cuda for one in made)


def test_data_parallel_has_one_gpu() -> None:
    layer = nn.Linear(2, 3)
    for wrapped in (nn.DataParallel(layer), nn.DataParallel(layer, device_ids=[0]), nn.DataParallel(layer, [0], 0)):
        assert wrapped.cuda().module is layer
        with torch.autocast("cuda"):
            assert wrapped(torch.ones(1, 2)).dtype is HALF


def test_a_gpu_is_asked_about_itself() -> None:
    assert [int(part) for part in str(torch.version.cuda).split(".")] >= [11, 0]
    assert torch.cuda.nccl.version() >= (2, 10)
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
    assert torch.cuda.default_generators[0].initial_seed() == torch.cuda.initial_seed()
    assert torch.cuda.get_device_properties(0).warp_size == 32
    assert torch.nested.nested_tensor([torch.ones(1)], device="cuda", layout=torch.jagged).is_cuda


def test_a_launcher_has_as_many_gpus_as_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert torch.cuda.device_count() == 4


def test_a_profile_has_no_events_of_a_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    kinds = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=kinds) as seen, torch.autograd.profiler.emit_nvtx():
        torch.ones(2, device="cuda").sum()
    assert "aten::sum" in {one.key for one in seen.key_averages()}
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_graphs_are_refused_or_do_without() -> None:
    layer = nn.Linear(2, 2)
    assert torch.cuda.make_graphed_callables(layer, (torch.ones(1, 2),)) is layer
    with pytest.raises(RuntimeError, match="CUDA graphs are not emulated"):
        torch.cuda.CUDAGraph()


@pytest.mark.parametrize("name", ["CUDAGraph", "graph", "Stream", "Event", "device", "device_of", "FloatTensor"])
def test_classes_stay_classes_for_annotations(name: str) -> None:
    """As `torch.cuda.CUDAGraph | None` in transformers."""
    assert isinstance(getattr(torch.cuda, name) | None, types.UnionType)
    assert isinstance(torch.Generator | None, types.UnionType)


def test_a_device_is_one_for_everybody_who_asks() -> None:
    device = torch.device(0)
    assert str(device) == "cuda:0"
    assert type(device) is DEVICE
    assert isinstance(device, torch.device)
    assert isinstance(torch.ones(1).device, torch.device)
    assert not isinstance("cuda", torch.device)
    assert issubclass(DEVICE, torch.device)
    assert {DEVICE: 1}[torch.device] == 1
    assert type(device) in (str, torch.device)
    assert pickle.loads(pickle.dumps(device)) == device
    assert (torch.device | None) is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_knows_it() -> None:
    def moved(x: Tensor, device: torch.device) -> Tensor:
        return x.to(device) + torch.zeros(2, device=torch.device("cpu"))

    moved.__annotations__ = {"x": Tensor, "device": torch.device, "return": Tensor}
    assert torch.jit.script(moved)(torch.ones(2), torch.device("cpu")).tolist() == [1.0, 1.0]


def test_storages_are_sent_to_a_gpu_when_loaded(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", map_location=lambda storage, _: storage.cuda(0))  # type: ignore[attr-defined]
    assert found["weight"].tolist() == [1.0, 1.0]


# --- half products into what is there ---------------------------------------------------------------------------------

PRODUCTS: dict[str, tuple[tuple[int, ...], ...]] = {
    "addmm": ((5, 7), (5, 64), (64, 7)),
    "baddbmm": ((3, 5, 7), (3, 5, 64), (3, 64, 7)),
    "addmv": ((5,), (5, 64), (64,)),
    "addr": ((5, 7), (5,), (7,)),
    "addbmm": ((5, 7), (3, 5, 64), (3, 64, 7)),
    "mm": ((5, 64), (64, 7)),
    "bmm": ((3, 5, 64), (3, 64, 7)),
    "mv": ((5, 64), (64,)),
    "dot": ((64,), (64,)),
    "matmul": ((3, 5, 64), (64, 7)),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_into_a_tensor_round_once(name: str, dtype: torch.dtype, autocast: bool) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in PRODUCTS[name]]
    function = getattr(torch, name)
    expected = function(*(one.float() for one in inputs)).to(dtype)
    with torch.autocast("cuda", dtype=HALF, enabled=autocast):
        out = torch.empty_like(expected)
        assert function(*inputs, out=out) is out
        assert torch.equal(out, expected)
        if name.startswith("add") or name == "baddbmm":
            target = inputs[0].clone()
            assert getattr(target, f"{name}_")(*inputs[1:]) is target
            assert torch.equal(target, expected)


def test_a_product_in_place_has_gradients() -> None:
    weight = torch.randn(4, 4).half().requires_grad_()
    torch.zeros(4, 4).half().addmm_(weight, torch.ones(4, 4).half(), beta=0.5, alpha=2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype is HALF
    assert weight.grad.unique().tolist() == [8.0]
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.mm(weight, weight, out=torch.empty(4, 4).half())


def test_what_does_not_fit_is_refused_in_torchs_words() -> None:
    a = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="to have dtype"):
        torch.mm(a, a, out=torch.empty(2, 2).half())
    assert torch.equal(a.clone().addmm_(a, a), torch.full((2, 2), 3.0))


# --- SyncBatchNorm ------------------------------------------------------------------------------------------------------

RANKS = """\
import copy
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from amp_doctor.probe.dryrun import DryRun


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def work(rank, file, half):
    with DryRun():
        dist.init_process_group("nccl", init_method="file://" + file, rank=rank, world_size=2)
        whole, x = net(), torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(net()).cuda(rank)
        model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        mine = x[:3] if rank == 0 else x[3:]
        with torch.autocast("cuda", dtype=torch.float16, enabled=half):
            for _ in range(2):
                out = model(mine.cuda(rank))
                expected = whole(x)
            out.float().square().mean().backward()
            expected.float().square().mean().backward()
        near = dict(rtol=2e-2, atol=2e-3) if half else dict(rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(out, expected[:3] if rank == 0 else expected[3:], **near)
        for (name, one), two in zip(model.module.named_parameters(), whole.parameters()):
            torch.testing.assert_close(one.grad, two.grad, msg=lambda told: name + told, **near)
        for one, two in zip(model.module.buffers(), whole.buffers()):
            torch.testing.assert_close(one, two, **near)
        assert out.dtype is (torch.float16 if half else torch.float32)
        model.eval()
        assert model(mine).shape == (3, 5)
        dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], sys.argv[2] == "half"), nprocs=2)
    print("same")
"""


@pytest.mark.parametrize("precision", ["full", "half"])
def test_batch_norm_over_ranks_is_that_of_the_whole_batch(tmp_path: Path, precision: str) -> None:
    run = plain(tmp_path, write(tmp_path, RANKS), str(tmp_path / "meeting"), precision)
    assert run.out == "same\n", run.err


def test_one_rank_alone_needs_no_other(tmp_path: Path) -> None:
    layer = nn.SyncBatchNorm(3)
    x = torch.randn(4, 3, 5)
    assert torch.equal(layer(x), nn.BatchNorm1d(3)(x))
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        assert torch.equal(layer(x), nn.BatchNorm1d(3)(x))
    finally:
        torch.distributed.destroy_process_group()


SHARDED = """\
import functools
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
model = FullyShardedDataParallel(
    nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)),
    auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=100),
    mixed_precision=MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16),
    device_id=torch.cuda.current_device(),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = ShardedGradScaler(init_scale=1024.0)
for _ in range(10):
    out = model(torch.randn(4, 8, device="cuda"))
    assert out.dtype is torch.float16
    optimizer.zero_grad()
    scaler.scale(out.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
"""


def test_parameters_are_sharded_over_ranks(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "amp_doctor", "probe"]
    run = plain(tmp_path, *words, "--steps", "4", "--fail-on", "never", write(tmp_path, SHARDED))
    assert run.status == 0, run.err
    assert run.out.lstrip().startswith("Emulated:")
    assert "steps:    4 of 4 attempted" in run.out
