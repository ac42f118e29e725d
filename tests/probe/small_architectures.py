"""Architectures of transformers with random weights, small, trained on noise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, LENGTH, VOCABULARY = 4, 24, 200
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
ENCODER_DECODER = {
    "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip


def _tokens() -> dict[str, Any]:
    tokens = torch.randint(5, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def _padded() -> dict[str, Any]:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[0, 10:], mask[1, 5:] = 0, 0
    return {**_tokens(), "attention_mask": mask}


def _images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(0, 5, (BATCH,))}


def _pairs() -> dict[str, Any]:
    return {"input_ids": _tokens()["input_ids"], "pixel_values": _images()["pixel_values"], "return_loss": True}


def _train(model: str, config: str, settings: dict[str, Any], batch: Callable[[], dict[str, Any]]) -> None:
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    trained = getattr(transformers, model)(getattr(transformers, config)(**settings)).train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=5e-4)
    while True:
        loss = trained(**batch()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


ARCHITECTURES: dict[str, Callable[[], None]] = {
    "BERT": partial(_train, "BertForMaskedLM", "BertConfig", TEXT, _padded),
    "Llama": partial(_train, "LlamaForCausalLM", "LlamaConfig", GROUPED, _padded),
    "Llama, eager": partial(
        _train, "LlamaForCausalLM", "LlamaConfig", {**GROUPED, "attn_implementation": "eager"}, _padded
    ),
    "Gemma 2": partial(_train, "Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 16}, _tokens),
    "Mixtral": partial(_train, "MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}, _tokens),
    # Multiplies a mask of the lowest number of FP32 by ones.
    "Longformer": partial(
        _train, "LongformerForMaskedLM", "LongformerConfig",
        {**TEXT, "attention_window": 8, "max_position_embeddings": 64}, _padded,
    ),
    "Mamba": partial(
        _train, "MambaForCausalLM", "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}, _tokens,
    ),
    "T5": partial(
        _train, "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4,
         "decoder_start_token_id": 0}, _tokens,
    ),
    "BART": partial(
        _train, "BartForConditionalGeneration", "BartConfig", {**ENCODER_DECODER, "max_position_embeddings": 64}, _tokens
    ),
    "ViT": partial(_train, "ViTForImageClassification", "ViTConfig", {**IMAGE, "num_labels": 5}, _images),
    "ConvNeXt": partial(
        _train, "ConvNextForImageClassification", "ConvNextConfig",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": 5}, _images,
    ),
    "CLIP": partial(
        _train, "CLIPModel", "CLIPConfig",
        {"text_config": {**TEXT, "max_position_embeddings": 64}, "vision_config": IMAGE, "projection_dim": 32}, _pairs,
    ),
}  # fmt: skip
