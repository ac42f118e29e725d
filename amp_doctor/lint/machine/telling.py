"""The words of mixed precision: those that make a leaf telling, and those that make a function worth running."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.lint.trace import Function

STRONG = re.compile(
    r"autocast|scaler|^scale$|unscale_|backward|^half$|float16|^amp|_amp$|_amp_|GradScaler|clip_grad|nullcontext|HalfTensor|custom_fwd|custom_bwd|"
    r"^requires_grad|upcast|kbit|^grad$|zero_grad|^isnan$|^isfinite$|^deepcopy$|^state_dict$|^load_state_dict$|^autograd$|^no_grad$|^inference_mode$|^fp16|^bf16|set_default_dtype"
)
"""Words that make a leaf telling on their own."""

ROOT = re.compile(
    r"autocast|scaler|^scale$|unscale_|backward|^half$|float16|GradScaler|clip_grad|HalfTensor|custom_fwd|custom_bwd|set_default_dtype|_amp|^state_dict$|^load_state_dict$|^requires_grad"
)
"""Words that make a function worth running on its own."""

STEP = re.compile(r"^step$|^update$|^optim$|^SGD$|^Adam|^LBFGS$|^RMSprop$|^to$|^float$|^cuda$|^nn$|^compile$|^trace$")
"""Words that make a call telling."""

_memo: dict[str, bool] = {}
_roots: dict[str, bool] = {}


def strong(word: str) -> bool:
    """True for a word that makes a leaf telling on its own."""
    found = _memo.get(word)
    if found is None:
        found = _memo[word] = bool(STRONG.search(word))
    return found


def rooted(words: Iterable[str]) -> bool:
    """True when any word makes a function worth running."""
    for word in words:
        found = _roots.get(word)
        if found is None:
            found = _roots[word] = bool(ROOT.search(word))
        if found:
            return True
    return False


def relevant_functions(functions: Iterable[Function]) -> frozenset[str]:
    """The first-party functions that lead to mixed precision, by name: they mention it or call one that does."""
    table: dict[str, set[str]] = {}
    for function in functions:
        table.setdefault(function.name, set()).update(function.words)
    found = {name for name, words in table.items() if rooted(words)}
    while True:
        more = {name for name, words in table.items() if name not in found and words & found}
        if not more:
            return frozenset(found - {"__init__", "<lambda>", "forward", "main"})
        found |= more
