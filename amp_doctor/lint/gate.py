"""The byte gate: files without a word of mixed precision never reach libcst."""

from __future__ import annotations

import re

_MARKERS = re.compile(rb"autocast|GradScaler|\.half\(|float16|HalfTensor|\bapex\b|custom_fwd|custom_bwd")


def relevant(code: bytes) -> bool:
    """True when the file mentions mixed precision at all."""
    return _MARKERS.search(code) is not None
