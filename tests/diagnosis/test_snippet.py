"""The code to paste, pasted: what a layer in FP32 may be called with."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_doctor.diagnosis.profile import Operator, Source
from amp_doctor.diagnosis.recommend import recommend
from tests.diagnosis.test_recommend import HALF as HALF_SCRIPT
from tests.diagnosis.test_recommend import HEALTHY, OVERFLOWING, T4

HALF = torch.ones(2, 4, dtype=torch.float16)
Pair = namedtuple("Pair", ("first", "second"))


class Block(nn.Module):
    """Says of its inputs which dtypes they have, however nested."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.met: list[torch.dtype] = []

    def forward(self, hidden_states: Any, **options: Any) -> Tensor:
        self._look((hidden_states, options))
        first = hidden_states
        while not torch.is_tensor(first):
            first = next(iter(first.values() if isinstance(first, dict) else first))
        return self.linear(first)

    def _look(self, value: Any) -> None:
        if torch.is_tensor(value):
            self.met.append(value.dtype)
        elif isinstance(value, (tuple, list, dict)):
            for one in value.values() if isinstance(value, dict) else value:
                self._look(one)


def pasted() -> Any:
    """`run_in_float32` of the snippet, on this machine."""
    text = recommend(replace(OVERFLOWING, device=T4)).snippet
    assert "def run_in_float32(layer):" in text
    namespace: dict[str, Any] = {}
    exec(text.partition("for name in [")[0].replace('"cuda"', '"cpu"'), namespace)
    return namespace["run_in_float32"]


def test_a_layer_called_by_keyword() -> None:
    layer = nn.Linear(4, 4)
    pasted()(layer)
    with torch.autocast("cpu", dtype=torch.float16):
        assert layer(input=HALF).dtype == layer(HALF).dtype == torch.float32


@pytest.mark.parametrize(
    "inputs", [HALF, (HALF, HALF), [HALF], {"x": (HALF, [HALF])}, Pair(HALF, HALF)], ids=lambda value: str(type(value))
)
def test_a_block_with_nested_inputs(inputs: Any) -> None:
    block = Block()
    pasted()(block)
    with torch.autocast("cpu", dtype=torch.float16):
        out = block(hidden_states=inputs, attention_mask=None, states=(HALF, {"c": HALF}), steps=3)
    assert out.dtype == torch.float32
    assert set(block.met) == {torch.float32}


def test_what_is_no_float_stays() -> None:
    embedding = nn.Embedding(5, 3)
    pasted()(embedding)
    assert embedding(input=torch.tensor([1, 2])).shape == (2, 3)


def test_a_block_of_transformers_and_a_packed_sequence() -> None:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertIntermediate

    run_in_float32 = pasted()
    make: Any = BertIntermediate
    block = make(BertConfig(hidden_size=4, intermediate_size=8))
    run_in_float32(block)
    lstm = nn.LSTM(4, 3, batch_first=True)
    run_in_float32(lstm)
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 4).half(), torch.tensor([3, 2]), batch_first=True)
    with torch.autocast("cpu", dtype=torch.float16):
        assert block(hidden_states=HALF).dtype == torch.float32
        assert lstm(packed, (torch.ones(1, 2, 3).half(), torch.ones(1, 2, 3).half()))[0].data.dtype == torch.float32


LOST = "What writes in place would write into such a copy, which is lost."


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("index_add_", "out = out.float().index_add(...)  # and not out.index_add_(...)"),
        ("setitem", "x = x.float()  # before the line, for setitem"),
        ("__iadd__", "x = x.float()  # before the line, for __iadd__"),
        ("index_add", ""),
    ],
)
def test_an_operator_in_place_gets_a_tensor_of_its_own(name: str, told: str) -> None:
    line = Operator(name, "", Source("net.py", 9), "O1/float16", "mixed", "float16", 3.0)
    text = recommend(replace(HEALTHY, precision=HALF_SCRIPT, operators=(line,), device=T4)).snippet
    assert (LOST in text, told in text) == (bool(told), True)
