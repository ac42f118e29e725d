"""The byte gate: files without a word of mixed precision never reach libcst."""

from __future__ import annotations

import re

_MARKERS = re.compile(rb"autocast|GradScaler|\.half\(|float16|HalfTensor|\bapex\b|custom_fwd|custom_bwd")
_TRAINING = re.compile(rb"backward\(|scaler|autocast|GradScaler|\.half\(|clip_grad|unscale_|torch\.float16")


def relevant(code: bytes) -> bool:
    """True when the file mentions mixed precision at all."""
    return _MARKERS.search(code) is not None


def training(code: bytes) -> bool:
    """True when an imported first-party file may hold a part of the training step or of the model."""
    return _TRAINING.search(code) is not None
