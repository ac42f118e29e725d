"""The byte gate: files without a word of mixed precision never reach libcst."""

from __future__ import annotations

import re

_WORDS = (b"autocast", b"GradScaler", b".half(", b"float16", b"HalfTensor", b"custom_fwd", b"custom_bwd")
_TRAINING = re.compile(rb"backward\(|scaler|autocast|GradScaler|\.half\(|clip_grad|unscale_|torch\.float16")


def relevant(code: bytes) -> bool:
    """True when the file mentions mixed precision at all."""
    # Plain searches run at memory speed; one regex of alternatives takes five times as long.
    return any(word in code for word in _WORDS) or (b"apex" in code and re.search(rb"\bapex\b", code) is not None)


def training(code: bytes) -> bool:
    """True when an imported first-party file may hold a part of the training step or of the model."""
    return _TRAINING.search(code) is not None
