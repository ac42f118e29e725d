"""Numbers as a person reads them: shares, magnitudes, loss scales, names of roles."""

from __future__ import annotations

import re
from math import frexp, isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import ACTIVATION, ACTIVATION_GRAD, UPDATE, WEIGHT, WEIGHT_GRAD

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Source

# Profiles travel between systems.
_SEPARATOR = r"[/\\]"
# What the elements of a site are called in a sentence.
ROLE_WORDS = {
    ACTIVATION: "outputs",
    ACTIVATION_GRAD: "gradients of its output",
    WEIGHT: "weights",
    WEIGHT_GRAD: "gradients of its weights",
    UPDATE: "updates",
}


def percent(share: float) -> str:
    """`0.431` -> "43.1 %"; a share that is not quite 0 or 1 never reads as if it were."""
    if 0 < share < 0.0005:
        return "under 0.1 %"
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    return f"{100 * share:.3g} %" if share in (0.0, 1.0) else f"{100 * share:.1f} %"


def magnitude(value: float) -> str:
    """Three digits, thousands set apart, powers of ten without zeros: 71,234; 0.52; 3.1e-7; inf."""
    size = abs(value)
    if not isfinite(value):
        return str(value)
    if size >= 1e7 or 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.0f}" if size >= 100 else f"{value:.3g}"


def scale_words(scale: float) -> str:
    """A loss scale: digits up to 2^20, a power of two beyond and below 1."""
    significand, exponent = frexp(scale)
    if significand == 0.5 and (scale > 2**20 or scale < 1):
        return f"2^{exponent - 1}"
    return f"{scale:.0f}" if scale >= 1 else f"{scale:.3g}"


def line_words(source: Source) -> str:
    """`train.py:12`: of the path the name of the file is enough in a sentence."""
    return f"{re.split(_SEPARATOR, source.path)[-1]}:{source.line}"


def count(number: int, noun: str) -> str:
    """`1 layer`, `1,200 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: list[str], most: int = 3) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""
