"""A recorded step is a torch.fx.GraphModule that gives the same bits when it is run again, gradients included."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import fx, nn
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import _get_current_function_mode_stack

from amp_doctor.probe import Probe
from amp_doctor.probe.exact import replay_exactly
from amp_doctor.probe.record import Recorder
from tests.probe.recorded_zoo_more import ZOO

if TYPE_CHECKING:
    from amp_doctor.probe.recorded import Recording
    from tests.probe.recorded_zoo import Step


def record(step: Step, limit: int = 1 << 30) -> Recording:
    recorder = Recorder(limit=limit)
    recorder.start()
    try:
        step()
    finally:
        recorder.cancel()
    return recorder.stop()


def prepared(name: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers' own
        model, step = ZOO[name]()
    step()
    return model, step


@pytest.mark.parametrize("name", ZOO)
def test_every_bit_of_a_step_comes_out_again(name: str) -> None:
    _, step = prepared(name)
    recording = record(step)
    result = replay_exactly(recording)
    assert result.different == ()
    assert result.compared > len(recording.losses)
    assert recording.losses


@pytest.mark.parametrize("name", ["resnet", "gpt2", "lstm", "gan", "custom_function"])
def test_a_saved_graph_is_the_same_graph(name: str) -> None:
    _, step = prepared(name)
    recording = record(step)
    file = io.BytesIO()
    torch.save(recording, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.graph_module.code == recording.graph_module.code
    assert [node.meta.get("source") for node in loaded.graph_module.graph.nodes] == [
        node.meta.get("source") for node in recording.graph_module.graph.nodes
    ]
    assert replay_exactly(loaded).exact


@pytest.mark.parametrize("name", ["resnet", "gan", "gpt2_checkpointed_reentrant", "views_and_writes"])
def test_recording_changes_nothing(name: str) -> None:
    weights = []
    for recorded in (False, True):
        model, step = prepared(name)
        for number in range(3):
            if recorded and number == 1:
                record(step)
            else:
                step()
        weights.append([value.clone() for value in model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def lines() -> list[str]:
    return Path(__file__).read_text("utf-8").splitlines()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden = torch.tanh(hidden)  # the line that is looked for
        logits: torch.Tensor = self.second(hidden)
        return logits


def small() -> tuple[Small, Step]:
    torch.manual_seed(0)
    model = Small()

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(torch.randn(4, 4)), torch.tensor([0, 1, 0, 1])).backward()

    return model, step


def test_nodes_know_their_layer_line_dtype_and_shape() -> None:
    _, step = small()
    graph = record(step).graph_module.graph
    (tanh,) = (node for node in graph.nodes if node.target is torch.tanh)
    assert tanh.meta["layer"] == "Small"
    assert tanh.meta["module_type"] == "Small"
    assert tanh.meta["dtype"] is torch.float32
    assert tanh.meta["shape"] == (4, 8)
    assert "the line that is looked for" in lines()[tanh.meta["source"].line - 1]
    assert tanh.meta["source"].path == __file__
    linears = [node.meta["layer"] for node in graph.nodes if getattr(node.target, "__name__", "") == "linear"]
    assert linears == ["first", "second"]
    assert {node.meta["path"] for node in graph.nodes if node.op == "placeholder"} == {
        "first.weight", "first.bias", "second.weight", "second.bias",
    }  # fmt: skip


def test_the_graph_is_open_to_passes() -> None:
    """A pass of anybody's: every tanh becomes a relu, and the graph runs in a plain interpreter."""
    _, step = small()
    recording = record(step)
    module = recording.graph_module
    assert isinstance(module, fx.GraphModule)
    for node in module.graph.nodes:
        if node.target is torch.tanh:
            node.target = torch.relu
    module.graph.lint()
    module.recompile()
    assert "torch.relu" in module.code
    (changed,) = fx.Interpreter(module).run(*recording.fresh_inputs())
    (called,) = module(*recording.fresh_inputs())
    assert torch.equal(changed, called)


def test_what_no_backward_pass_needs_is_left_out() -> None:
    model, step = small()

    def measuring() -> None:
        step()
        with torch.no_grad():
            torch.stack([p.detach().norm() for p in model.parameters()]).sum().sqrt()

    assert len(record(measuring).graph_module.graph.nodes) == len(record(step).graph_module.graph.nodes)


def test_a_step_without_a_backward_pass_is_an_empty_graph() -> None:
    def step() -> None:
        torch.ones(3).sum()

    assert record(step).losses == ()


def test_beyond_the_cap_inputs_are_kept_by_reference_with_a_note() -> None:
    _, step = small()
    recording = record(step, limit=64)
    assert not recording.exact
    assert any("kept by reference" in note for note in recording.notes)


def test_a_probe_within_a_probe_records_its_own_step() -> None:
    """As a notebook with a `Probe` in it that is run by `amp-doctor probe`."""
    network, _ = small()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with Probe(steps=8), Probe(steps=5) as probe:
        for _ in range(8):
            optimizer.zero_grad()
            network(torch.randn(4, 4)).sum().backward()
            optimizer.step()
    replayed = probe.profile.replay
    assert probe.profile.steps.taken == 5
    assert replayed is not None
    assert replayed.exact
    assert "apply" not in vars(_SingleLevelFunction)
    assert not _get_current_function_mode_stack()


def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def test_what_torchscript_does_is_named_and_enters_as_a_value() -> None:
    model, _ = small()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = torch.jit.script(_twice)

    def step() -> None:
        (compiled(model.first(torch.randn(4, 4))) * 3).sum().backward()

    recording = record(step)
    assert any("recorded value" in note and __file__ in note for note in recording.notes)


def test_gradients_are_not_part_of_the_graph_but_clipping_does_no_harm() -> None:
    _, step = prepared("resnet")
    names = {getattr(node.target, "__name__", node.target) for node in record(step).graph_module.graph.nodes}
    assert not any("vector_norm" in name or "foreach" in name for name in names)


def test_a_compiled_model_is_recorded_as_it_runs_eagerly_and_compiles_again_afterwards() -> None:
    model, _ = small()
    compiled = torch.compile(model.forward, backend="eager")
    before = torch._dynamo.config.disable
    recording = record(lambda: compiled(torch.randn(4, 4)).sum().backward())
    assert torch._dynamo.config.disable == before
    assert recording.notes == ()
    assert [node.target for node in recording.graph_module.graph.nodes].count(torch.tanh) == 1
    assert replay_exactly(recording).exact


def test_what_other_ranks_send_is_a_recorded_value(tmp_path: Path) -> None:
    dist, layer = torch.distributed, nn.Linear(4, 2)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:

        def step() -> None:
            x = torch.randn(3, 4)
            count, gathered = torch.tensor(3), torch.zeros(2, 1)
            dist.all_reduce(count)
            dist.all_gather(list(gathered[:1].split(1)), x.sum().reshape(1, 1))
            (layer(x).square().sum() * gathered.sum() / count).backward()

        recording = record(step)
    finally:
        dist.destroy_process_group()
    assert not [node for node in recording.graph_module.graph.nodes if "all_" in node.name]
    assert replay_exactly(recording).exact
