"""transformers' own T5, whose `wo` leaves float16's range as that of the published weights does on real text.

transformers keeps `wo` in float32 when it loads a T5 in half (`_keep_in_fp32_modules`); the probe has to find it out.
"""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

from amp_doctor.probe import Probe
from tests.probe.small_architectures import VOCABULARY

LAYER = "encoder.block.1.layer.1.DenseReluDense.wo"


def trained(kind: str, steps: int = 8) -> Probe:
    """Feed-forwards of the size that the published ones reach: wi of hundreds, wo of hundreds of thousands."""
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    t5: Any = transformers
    config = t5.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_ff=64, d_kv=8, num_layers=2, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj=kind,
    )  # fmt: skip
    model = t5.T5ForConditionalGeneration(config).train()
    feed_forward = model.encoder.block[1].layer[1].DenseReluDense
    with torch.no_grad():
        for name, parameter in feed_forward.named_parameters():
            parameter.mul_(3000 if name.startswith("wo") else 30)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    with Probe(steps=steps) as probe:
        while True:
            tokens = torch.randint(2, VOCABULARY, (4, 12))
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    return probe


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_wo_is_found_with_its_line_and_recommended_for_float32(kind: str) -> None:
    probe = trained(kind)
    first = probe.profile.operators[0]
    assert (first.operator, first.layer, first.trouble, first.phase) == ("linear", LAYER, "overflow", "forward")
    assert first.precision == "O1/float16"
    assert first.source is not None
    assert "self.wo(" in linecache.getline(first.source.path, first.source.line)
    replay = probe.profile.replay
    assert replay is not None
    assert replay.exact
    assert replay.keep == (f"{LAYER}: linear",)
    assert LAYER in [one.layer for one in probe.recommendation.keep_fp32]
    assert LAYER in [one.layer for one in probe.findings]
    assert f"{LAYER.removesuffix('.DenseReluDense.wo')}.dropout" not in [
        one.layer for one in probe.recommendation.keep_fp32
    ]
