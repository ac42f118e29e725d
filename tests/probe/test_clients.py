"""Training scripts as people write them, unedited, under the probe: exact steps, the layers, the exit status, no noise."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.profile import ROLES
from tests.probe.clients import CLIENTS, Client, report, torchrun
from tests.probe.running import plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADAMW, SAVED = "AdamW", "on its way out the stopped script saved"

STOPPED = (
    Client(
        "hf-trainer",
        ("hf_trainer.py",),
        7,
        "59424 parameters, 246 training blocks",
        ("transformer.wte", "transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj", "transformer.ln_f", "lm_head"),
        None,
        ((ADAMW, 7),),
    ),
    Client(
        "hf-trainer-t5",
        ("hf_trainer_t5.py", "--num_layers", "1"),
        6,
        "",
        ("encoder.block.0.layer.0.SelfAttention.q", "decoder.block.0.layer.2.DenseReluDense.wo", "lm_head"),
        "decoder.block.0.layer.1.EncDecAttention.k",
        ((ADAMW, 6),),
    ),
    Client(
        "accelerate-gpt2",
        ("accelerate_gpt2.py",),
        10,
        "epoch 0: perplexity: ",
        ("transformer.h.0.ln_1", "transformer.h.1.mlp.c_fc"),
        None,
        ((ADAMW, 10),),
    ),
    Client(
        "accelerate-t5",
        ("accelerate_t5.py",),
        11,
        "step 10: loss ",
        ("encoder.block.1.layer.1.DenseReluDense.wi_0",),
        "decoder.block.1.layer.2.DenseReluDense.wo",
        (("Adafactor", 11),),
    ),
    Client(
        "lightning",
        ("lightning_digits.py", "--accumulate", "2"),
        5,
        "",
        ("features.0", "features.1", "features.4", "head.1"),
        "head.4",
        ((ADAMW, 5),),
    ),
    Client(
        "lightning-manual",
        ("lightning_manual.py",),
        6,
        "",
        ("Generator.model.1", "Discriminator.model.2"),
        "Generator.model.0",
        (("Adam", 6), ("Adam (2)", 5)),
    ),
    Client(
        "fabric",
        ("fabric_digits.py",),
        12,
        "Train Epoch: 1 [640/1500]",
        ("conv1", "conv2", "dropout1", "fc2"),
        "fc1",
        (("Adadelta", 12),),
    ),
    Client(
        "timm",
        ("timm_style.py", "--grad-accum-steps", "2"),
        5,
        "",
        ("patch_embed", "blocks.0.attn.qkv", "blocks.1.mlp.fc2", "norm"),
        "head",
        ((ADAMW, 5),),
    ),
    Client(
        "timm-amp",
        ("timm_style.py", "--amp"),
        25,
        "epoch 0: train ",
        ("patch_embed", "blocks.1.attn.proj"),
        "head",
        ((ADAMW, 25),),
        notes=("the script saved output/model_best.pth.tar",),
    ),
    Client(
        "resnet",
        ("resnet_digits.py",),
        12,
        "Epoch: [0][10/23]",
        ("conv1", "layer1.0.bn2", "layer2.0.downsample.0", "avgpool"),
        "fc",
        (("SGD", 12),),
        notes=(f"WARNING: {SAVED} checkpoint.pth",),
    ),
    Client(
        "char-rnn",
        ("char_rnn.py",),
        33,
        "[epoch 1] loss ",
        ("encoder", "rnn"),
        "decoder",
        (("Adam", 33),),
    ),
    Client(
        "gan",
        ("gan.py",),
        7,
        "[0/40] Loss_D: ",
        ("Generator.main.0", "Generator.main.7", "Discriminator.main.3"),
        None,
        (("Adam", 7), ("Adam (2)", 3)),
    ),
    Client(
        "nanogpt",
        ("nanogpt/train.py", "nanogpt/config/train_tiny.py", "--max_iters=20"),
        11,
        "step 10: train loss ",
        ("transformer.wte", "transformer.h.0.attn.c_attn", "transformer.ln_f", "lm_head"),
        "transformer.h.1.mlp.c_fc",
        ((ADAMW, 11),),
        notes=("the script saved out/ckpt.pt",),
    ),
    Client(
        "diffusion",
        ("diffusion.py",),
        4,
        "",
        ("model.time_mlp.1", "model.down.conv1", "model.mid.norm", "model.final_conv"),
        "model.down.mlp.1",
        (("Adam", 4),),
    ),
    Client(
        "reinforce",
        ("reinforce.py", "--log-interval", "5"),
        6,
        "Episode 5\t",
        ("affine1", "dropout"),
        "affine2",
        (("Adam", 6),),
    ),
    Client(
        "swallow",
        ("swallow.py",),
        8,
        "batch 6 failed: index out of range in self",
        ("embed",),
        "fc",
        ((ADAMW, 8),),
    ),
    Client(
        "compiled",
        ("compiled.py",),
        22,
        "step 20: ",
        ("act", "norm"),
        "down",
        ((ADAMW, 22),),
        notes=("torch.compile was asked for; under the probe the model ran eagerly",),
    ),
    Client(
        "checkpointing",
        ("checkpointing.py",),
        6,
        "",
        ("stem", "blocks.3.fc2", "head"),
        "blocks.0.fc1",
        ((ADAMW, 6),),
    ),
    Client(
        "amp-fp16",
        ("amp_fp16.py",),
        25,
        "epoch 0: loss ",
        ("0", "1", "4"),
        "2",
        ((ADAMW, 25),),
        options=("--mode", "observe"),
    ),
    Client(
        "amp-fp16-fused",
        ("amp_fp16.py", "--fused", "--init-scale", "1024"),
        5,
        "",
        ("0", "1", "4"),
        "2",
        ((ADAMW, 5),),
        options=("--mode", "observe"),
    ),
    torchrun(
        Client(
            "ddp",
            ("ddp.py",),
            30,
            "Epoch 0 | Loss ",
            ("0", "1"),
            "2",
            (("SGD", 30),),
            notes=("the script saved snapshot.pt",),
        )
    ),
    torchrun(
        Client(
            "fsdp2",
            ("fsdp2.py",),
            7,
            "step 5 loss ",
            ("tok_embeddings", "layers.0.wqkv", "layers.1.ffn_norm"),
            "layers.0.w1",
            (("Adam", 7),),
            notes=("parameters are sharded over several ranks (DTensor)",),
        )
    ),
)

# Attempts of a whole run. What is left out has its lines mixed by two processes, or tells no more.
TO_THE_END = {
    "hf-trainer": 16,
    "lightning": 24,
    "fabric": 48,
    "timm-amp": 46,
    "resnet": 46,
    "char-rnn": 64,
    "gan": 80,
    "nanogpt": 21,
    "amp-fp16": 40,
}
# Times differ from run to run.
TIMES = re.compile(r"'[a-z_]*(?:runtime|per_second)': '[^']*'")


def named(name: str) -> Client:
    return next(client for client in STOPPED if client.name == name)


@pytest.mark.parametrize("client", STOPPED, ids=lambda client: client.name)
def test_a_client_is_stopped_and_understood(tmp_path: Path, client: Client) -> None:
    where = tmp_path / "work"
    where.mkdir()
    run = client.probed(where)
    assert run.status == 0, run.err
    assert client.prints in run.out
    assert "amp-doctor" not in run.out
    assert "Traceback" not in run.err, run.err

    values = report(run)
    profile = values["profile"]
    assert profile == run.profile
    assert profile["steps"] == {
        "requested": client.steps, "attempted": client.steps, "taken": client.steps, "skipped": 0
    }  # fmt: skip
    assert profile["ended"] == "steps"
    assert profile["ranks"] == client.ranks
    assert len(profile["loss"]) == client.steps
    assert [(one["name"], one["attempted"]) for one in profile["optimizers"]] == list(client.optimizers)
    assert all((one["taken"], one["skipped"]) == (one["attempted"], 0) for one in profile["optimizers"])
    assert len(profile["notes"]) == len(client.notes), profile["notes"]
    for note, piece in zip(profile["notes"], client.notes, strict=True):
        assert piece in note

    sites = {layer["name"]: layer["sites"] for layer in profile["layers"]}
    assert set(client.layers) <= set(sites)
    assert all(site["elements"] for roles in sites.values() for site in roles.values())
    assert not [(name, role) for name, roles in sites.items() for role, site in roles.items() if site["nan"]]
    if client.linear is not None:
        assert set(sites[client.linear]) == set(ROLES)
    assert profile["first_nonfinite"] is None

    assert not [one for one in values["findings"] if one["severity"] != "note"]
    assert values["recommendation"]["dtype"] == "float16"
    assert values["recommendation"]["loss_scale"]["admissible"]


@pytest.mark.parametrize(("name", "steps"), TO_THE_END.items())
def test_a_client_that_ends_by_itself_does_what_it_did(tmp_path: Path, name: str, steps: int) -> None:
    """What it prints and every byte that it saves are those of a plain run."""
    client = named(name)
    bare, under = tmp_path / "bare", tmp_path / "under"
    bare.mkdir()
    under.mkdir()
    before = client.plain(bare)
    run = client.probed(under, "--steps", "100000", "--mode", "observe", "--every", "3")
    assert (run.status, before.status) == (0, 0), run.err
    assert TIMES.sub("", run.out) == TIMES.sub("", before.out)
    profile = report(run)["profile"]
    assert profile["steps"] == {"requested": 100000, "attempted": steps, "taken": steps, "skipped": 0}
    assert profile["ended"] == "finished"
    assert dict(saved(under)) == dict(saved(bare))


def saved(where: Path) -> Iterator[tuple[str, bytes]]:
    for file in where.rglob("*"):
        # The Trainer writes down how long it took.
        if file.is_file() and file.name != "trainer_state.json":
            yield str(file.relative_to(where)), file.read_bytes()


def test_children_of_spawn_are_probed(tmp_path: Path) -> None:
    where = tmp_path / "work"
    where.mkdir()
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    client = replace(named("ddp"), words=("mp_spawn.py", "--port", port), launch=())
    run = client.probed(where, "--steps", "9")
    assert run.status == 0, run.err
    assert "Running basic DDP example on rank 1." in run.out
    profile = report(run)["profile"]
    assert profile["steps"] == {"requested": 9, "attempted": 9, "taken": 9, "skipped": 0}
    assert (profile["ended"], profile["ranks"]) == ("steps", 2)
    sites = {layer["name"]: layer["sites"] for layer in profile["layers"]}
    assert {"net1", "relu", "net2"} <= set(sites)
    assert set(sites["net1"]) == set(ROLES)
    # Both ranks, nine steps, twenty rows of ten.
    assert sites["net1"]["activation"]["elements"] == 2 * 9 * 20 * 10


def test_a_script_that_only_evaluates_is_told_about(tmp_path: Path) -> None:
    where = tmp_path / "work"
    where.mkdir()
    run = replace(named("resnet"), words=("evaluate_only.py",)).probed(where)
    assert run.status == 0, run.err
    assert run.out.startswith("accuracy ")
    profile = report(run)["profile"]
    assert profile["steps"]["attempted"] == 0
    assert profile["ended"] == "finished"
    assert "no optimizer step was seen" in run.notes


def test_a_script_that_checks_its_dtypes_is_told_how_to_be_probed(tmp_path: Path) -> None:
    """Calibration widens autocast, and PyTorch's own tutorial asserts that an output is float16."""
    where = tmp_path / "work"
    where.mkdir()
    run = replace(named("amp-fp16"), options=()).probed(where)
    assert run.status == 1
    assert "assert output.dtype is dtype" in run.err
    assert "AssertionError" in run.notes
    assert "--mode observe" in run.notes


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    where = tmp_path / "work"
    where.mkdir()
    run = replace(named("resnet"), words=("notebook_style.py",)).plain(where)
    assert run.status == 0, run.err
    lines = run.out.splitlines()
    assert lines[0] == "Steps(requested=12, attempted=12, taken=12, skipped=0)"
    assert lines[1] == "['0', '1', '2', '3', '4']"
    assert lines[2:4] == ["[]", "float16"]
    assert float(lines[4]) < 0.2
    assert lines[5] == "3 finished"


def test_the_report_and_the_script_share_a_terminal(tmp_path: Path) -> None:
    """As text both go to stdout, the report last; as JSON the report has it for itself."""
    where = tmp_path / "work"
    where.mkdir()
    script = str(CLIENTS / "resnet_digits.py")
    text = plain(where, "-m", "amp_doctor", "probe", "--steps", "2", script)
    assert text.out.startswith("Epoch: [0][0/23]\tLoss ")
    assert text.out.index("saved checkpoint.pth") < text.out.index("float16")
    bare = plain(where, "-m", "amp_doctor", "probe", "--steps", "2", "--output-format", "json", script)
    assert json.loads(bare.out)["profile"]["steps"]["taken"] == 2
    assert "Epoch: [0][0/23]\tLoss " in bare.err
