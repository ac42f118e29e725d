"""Scripts and recipes written for CUDA, on a machine without a GPU: they run, and what is foretold comes to pass."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from amp_doctor.numerics.formats import FP16
from amp_doctor.probe import Probe
from amp_doctor.probe.dryrun import DryRun
from amp_doctor.probe.dryrun_devices import host
from tests.conftest import ROOT
from tests.probe.rounded import Transformer, cnn, images, texts
from tests.probe.running import plain, probed, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from amp_doctor.diagnosis.profile import Profile

HALF, FP32 = torch.float16, torch.float32
CLIENT = str(ROOT / "fixtures" / "clients" / "cuda_gpt.py")


@pytest.fixture
def _dry() -> Iterator[None]:
    with DryRun():
        yield


# --- devices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda", "cpu"),
        ("cuda:1", "cpu"),
        ("cpu", "cpu"),
        ("meta", "meta"),
        (torch.device("cuda", 0), torch.device("cpu")),
        (torch.device("meta"), torch.device("meta")),
        (0, torch.device("cpu")),
        (True, True),
        (None, None),
    ],
)
def test_host(device: Any, expected: Any) -> None:
    assert host(device) == expected
    assert type(host(device)) is type(expected)


@pytest.mark.usefixtures("_dry")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)])
def test_tensors_are_made_and_moved_by_the_name_of_the_device(device: Any) -> None:
    made = [
        torch.zeros(2, device=device),
        torch.tensor([1.0, 2.0], device=device),
        torch.empty(2, pin_memory=True),
        torch.randn(2, device=device, generator=torch.Generator(device=device).manual_seed(1)),
        torch.arange(2.0, device=device),
        torch.as_tensor([1.0, 2.0], device=device),
        torch.ones(2).new_zeros(2, device=device),
        torch.ones_like(torch.ones(2), device=device),
        torch.ones(2).to(device, non_blocking=True),
        torch.ones(2).to(device=device, dtype=HALF),
        torch.ones(2).to(device, HALF),
        torch.ones(2).pin_memory().cuda(non_blocking=True),
        torch.ones(2).cuda(0),
        torch.ones(2).type("torch.cuda.HalfTensor"),
        nn.Linear(2, 2, device=device).weight,
        nn.Linear(2, 2).to(device).weight,
        nn.Linear(2, 2).to(0).weight,
        nn.Linear(2, 2).to(device=device, dtype=HALF).weight,
        nn.Linear(2, 2).to(torch.ones(1, device=device, dtype=HALF)).weight,
        nn.Linear(2, 2).cuda().half().weight,
        torch.ones(2, device=0),
    ]
    assert all(one.is_cuda and one.get_device() == 0 for one in made)
    assert {one.dtype for one in made} == {FP32, HALF}
    with torch.device(device):
        assert torch.zeros(1).is_cuda
    assert torch.ones(2).to("meta").device.type == "meta"
    assert torch.ones(1).to(torch.ones(1, dtype=HALF)).dtype is HALF
    assert isinstance(torch.default_generator, torch.Generator)


@pytest.mark.usefixtures("_dry")
def test_torch_cuda_answers() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert "emulated" in torch.cuda.get_device_name(0)
    assert torch.cuda.get_device_properties(0).major == torch.cuda.get_device_capability()[0]
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    assert torch.amp.is_autocast_available("cuda")


@pytest.mark.usefixtures("_dry")
def test_random_numbers_follow_cudas_seed() -> None:
    drawn = []
    for _ in range(2):
        torch.cuda.manual_seed_all(3)
        drawn.append(torch.randn(3, device="cuda"))
    state = torch.cuda.get_rng_state()
    drawn.append(torch.randn(3, device="cuda"))
    torch.cuda.set_rng_state(state)
    drawn.append(torch.randn(3, device="cuda"))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[1], drawn[2])


@pytest.mark.usefixtures("_dry")
def test_checkpoints_written_on_a_gpu_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"weight": torch.ones(2)}, file)
    for place in (None, "cuda", torch.device("cuda:0"), {"cuda:1": "cuda:0"}):
        assert torch.load(file, map_location=place)["weight"].tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("_dry")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pins_memory_without_a_warning(workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, pin_memory=True, num_workers=workers)
    assert [batch[0].cuda(non_blocking=True).tolist() for batch in loader] == [[0.0, 1.0], [2.0, 3.0]]


# --- autocast and the scaler --------------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """Its forward is to run in float32, outside autocast."""

    seen: tuple[Any, ...] = ()

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=FP32)  # type: ignore[untyped-decorator]
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        Doubled.seen = (x.dtype, torch.is_autocast_enabled("cuda"))
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


@pytest.mark.usefixtures("_dry")
def test_custom_functions_are_given_what_they_ask_for() -> None:
    with torch.autocast("cuda"):
        out = Doubled.apply(nn.Linear(2, 2)(torch.ones(1, 2)))  # type: ignore[no-untyped-call]
    assert Doubled.seen == (FP32, False)
    assert out.dtype is FP32


@pytest.mark.usefixtures("_dry")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_under_the_same_autocast(reentrant: bool) -> None:
    layer, seen = nn.Linear(2, 2), []

    def forward(x: Tensor) -> Tensor:
        # Before the layer: a recomputation ends with the last tensor that is needed.
        seen.append((torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")))
        out: Tensor = layer(x)
        return out.relu()

    x = torch.ones(1, 2, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=HALF):
        out = checkpoint(forward, x, use_reentrant=reentrant)
    out.float().sum().backward()
    assert seen == [(True, HALF), (True, HALF)]


@pytest.mark.usefixtures("_dry")
def test_a_region_named_after_a_tensors_device_is_cudas() -> None:
    """As in the rotary embeddings of transformers: `x.device` says cpu here."""
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda", dtype=HALF):
        assert torch.is_autocast_enabled(x.device.type)
        assert torch.get_autocast_dtype(x.device.type) is HALF
        with torch.autocast(device_type=x.device.type, enabled=False):
            assert (x @ x).dtype is FP32
        assert (x @ x).dtype is HALF
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.usefixtures("_dry")
def test_the_scaler_is_the_real_one() -> None:
    layer = nn.Linear(4, 1, bias=False).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)
    scales = []
    for factor in (1.0, 1.0, 1e6, 1.0):
        optimizer.zero_grad()
        before = layer.weight.detach().clone()
        with torch.autocast("cuda", dtype=HALF):
            loss = layer(torch.full((8, 4), 1e-3, device="cuda")).float().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append((scaler.get_scale(), torch.equal(before, layer.weight)))
    assert scales == [(65536.0, False), (131072.0, False), (65536.0, True), (65536.0, False)]


@pytest.mark.usefixtures("_dry")
def test_half_weights_are_refused_in_the_scalers_words() -> None:
    layer = nn.Linear(4, 1).cuda().half()
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler.scale(layer(torch.ones(2, 4, device="cuda", dtype=HALF)).sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)


# --- what is foretold, and what comes -----------------------------------------------------------------------------------

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], list[tuple[Tensor, Tensor]]]]] = {
    "cnn": (cnn, images),
    "transformer": (Transformer, texts),
}


def train(
    name: str, steps: int, scale: float | None, *, lr: float = 1e-3, factor: float = 1.0, mode: str = "observe"
) -> Any:
    """The probe of a dry run; without a scale in float32."""
    make, batches = MODELS[name]
    torch.manual_seed(0)
    model, data = make(), batches(20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    with DryRun(), Probe(steps=steps, mode=mode) as probe:
        scaler = torch.amp.GradScaler("cuda", init_scale=scale or 1.0, enabled=scale is not None)
        for index in range(steps + 1):
            x, y = data[index % len(data)]
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=HALF, enabled=scale is not None):
                loss = F.cross_entropy(model(x.cuda()), y.cuda()) * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return probe


@pytest.mark.parametrize("scale", [1.0, 128.0, 65536.0])
@pytest.mark.parametrize("factor", [1.0, 0.01])
@pytest.mark.parametrize("name", MODELS)
def test_the_share_lost_is_what_the_histogram_of_float32_foretold(name: str, factor: float, scale: float) -> None:
    """Within one point in at least 95 of 100 gradients; steps of size zero, so that both see the same weights."""
    calibrated: Profile = train(name, 3, None, lr=0.0, factor=factor).profile
    observed: Profile = train(name, 3, scale, lr=0.0, factor=factor).profile
    before = {layer.name: layer.sites for layer in calibrated.layers}
    misses, shares = [], []
    for layer in observed.layers:
        for role in ("activation_grad", "weight_grad"):
            if role in layer.sites and role in before[layer.name]:
                exact, seen = before[layer.name][role].histogram, layer.sites[role].histogram
                foretold = exact.lost(FP16, scale)
                lost = (seen.zeros - exact.zeros) / max(1, exact.nonzero)
                shares.append(lost)
                if abs(lost - foretold) > 0.01:
                    misses.append((layer.name, role, foretold, lost))
    assert len(shares) >= 25
    assert len(misses) <= 0.05 * len(shares), misses
    # It is no test of zeros only.
    assert scale > 1 or max(shares) > (0.002 if factor == 1 else 0.05)


def test_a_probe_inside_a_dry_run_says_so_and_calibrates_in_float32() -> None:
    profile: Profile = train("transformer", 10, 65536.0, mode="auto").profile
    assert profile.device.emulated
    assert profile.precision.calibrated
    head = next(layer for layer in profile.layers if layer.name == "head")
    assert head.sites["activation"].dtype == "float32"
    assert head.observed["activation"].dtype == "float16"


@pytest.mark.parametrize(("name", "factor"), [("cnn", 1.0), ("transformer", 1.0), ("transformer", 1e-7)])
def test_the_scale_recommended_is_never_skipped_and_near_the_largest_that_is_not(name: str, factor: float) -> None:
    scale = train(name, 50, 65536.0, factor=factor, mode="auto").recommendation.loss_scale.init_scale
    assert train(name, 200, scale, factor=factor).profile.steps.skipped == 0
    assert train(name, 200, scale * 8, factor=factor).profile.steps.skipped > 0


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("factor", [1.0, 1e-3])
def test_a_loss_in_half_takes_no_larger_scale_than_half_can_hold(factor: float, scaled: bool) -> None:
    """Its gradient is the scale. A script in float32 is told by the replay what autocast would make of the loss."""

    def regress(scale: float, steps: int, *, autocast: bool) -> Any:
        torch.manual_seed(0)
        model, x = nn.Linear(16, 4), torch.randn(32, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01 / factor)
        with DryRun(), Probe(steps=steps, mode="auto") as probe:
            scaler = torch.amp.GradScaler("cuda", init_scale=scale, enabled=autocast)
            for _ in range(steps):
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=HALF, enabled=autocast):
                    out = model(x)
                    loss = (out - x[:, :4].to(out.dtype)).abs().mean() * factor
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        return probe

    found = regress(8.0, 10, autocast=scaled).recommendation.loss_scale
    assert found.admissible[1] == 2**15
    assert regress(found.init_scale, 20, autocast=True).profile.steps.skipped == 0
    assert regress(found.init_scale * 4, 20, autocast=True).profile.steps.skipped > 0


class Logits(nn.Module):
    """Attention scores far beyond 65504, which come out harmless."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        nn.init.constant_(self.project.bias, 300.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.project(x)
        return (h @ h.t()) @ h * 1e-12


@pytest.mark.parametrize("mode", ["auto", "observe"])
def test_a_product_that_comes_out_infinite_is_named_with_what_it_reached(mode: str) -> None:
    torch.manual_seed(0)
    model = Logits()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with DryRun(), Probe(steps=20, mode=mode) as probe:
        scaler = torch.amp.GradScaler("cuda")
        while True:
            with torch.autocast("cuda"):
                loss = model(torch.randn(8, 8)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    told = [one.message for one in probe.findings if one.code == "AMP605"]
    assert len(told) == 1
    assert told[0].startswith("the result of matmul in this layer reaches ")
    assert "becomes infinite in FP16" in told[0]


# --- whole scripts ------------------------------------------------------------------------------------------------------


def test_a_script_for_cuda_is_probed_and_the_report_says_how(tmp_path: Path) -> None:
    assert "this script needs a GPU" in plain(tmp_path, CLIENT).err
    run = probed(tmp_path, "--dry-run", "cuda", "--steps", "20", CLIENT)
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith("training on CUDA emulated on a CPU")
    assert run.report is not None
    assert run.report.splitlines()[0].startswith("Emulated: the script ran on a CPU under the autocast rules of CUDA")
    assert run.profile is not None
    assert run.profile["device"]["kind"] == "cuda"
    assert run.profile["device"]["emulated"] is True
    assert run.profile["precision"]["autocast"] == ["float16"]
    assert run.profile["precision"]["calibrated"] is True
    assert run.profile["steps"] == {"requested": 20, "attempted": 20, "taken": 20, "skipped": 0}
    head = next(layer for layer in run.profile["layers"] if layer["name"] == "lm_head")
    # Calibrated in float32, then observed as written.
    assert head["sites"]["activation"]["dtype"] == "float32"
    assert head["observed"]["activation"]["dtype"] == "float16"


def test_ranks_that_ask_for_nccl_are_joined_by_gloo(tmp_path: Path) -> None:
    script, profile = str(ROOT / "fixtures" / "clients" / "cuda_ddp.py"), tmp_path / "profile.json"
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "amp_doctor", "probe"]
    run = plain(tmp_path, *words, "--dry-run", "cuda", "--steps", "10", "--profile", str(profile), script)
    assert run.status == 0, run.err
    assert run.out.lstrip().startswith("Emulated:")
    found = json.loads(profile.read_text())
    assert (found["ranks"], found["steps"]["attempted"]) == (2, 10)
    assert found["precision"]["scaler"] is True


@pytest.mark.parametrize(
    "code",
    [
        "print('no torch')\n",
        "import torch\nraise ValueError\n",
        (
            "import torch.multiprocessing as mp\ndef work(rank):\n    raise ValueError\n"
            "if __name__ == '__main__':\n    mp.spawn(work, nprocs=1)\n"
        ),
    ],
)
def test_a_run_without_a_step_is_said_to_be_emulated_too(tmp_path: Path, code: str) -> None:
    run = probed(tmp_path, "--dry-run", "cuda", write(tmp_path, code))
    assert run.report is not None
    assert run.report.startswith("Emulated:")


@pytest.mark.parametrize("option", ["--dry-run=off", "--mode=calibrate"])
def test_where_nothing_is_emulated_a_script_that_needs_a_gpu_is_told_how(tmp_path: Path, option: str) -> None:
    run = probed(tmp_path, option, CLIENT)
    assert run.status == 1
    assert "this script needs a GPU" in run.err
    assert "there is no GPU here: --dry-run cuda runs it on the CPU" in run.notes


def test_an_error_that_has_nothing_to_do_with_it_is_given_no_such_advice(tmp_path: Path) -> None:
    run = probed(tmp_path, write(tmp_path, "import torch\nraise ValueError('too large')\n"))
    assert "too large" in run.notes
    assert "--dry-run" not in run.notes


def test_a_script_that_cuda_refuses_fails_in_cudas_words(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Sigmoid()).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(100):\n"
        "    with torch.autocast('cuda'):\n"
        "        loss = torch.nn.BCELoss()(model(torch.ones(2, 4).cuda()), torch.ones(2, 1).cuda())\n"
        "    loss.backward()\n"
        "    optimizer.step()\n",
    )
    run = probed(tmp_path, "--dry-run", "cuda", "--mode", "observe", script)
    assert run.status == 1
    assert "torch.nn.BCELoss are unsafe to autocast" in run.err
    assert "amp_doctor" not in run.err
