"""Numbers in words: shares, magnitudes, loss scales, bytes."""

from __future__ import annotations

from math import frexp, isfinite

# Loss scales beyond this are easier to read as powers.
PLAIN_SCALE = 2**19


def share(part: float) -> str:
    """A share of 1 in at most five columns: `0`, `<0.1%`, `0.4%`, `41%`, `100%`; only all is 100 %, only none 0."""
    if part <= 0:
        return "0"
    if part >= 1:
        return "100%"
    percent = 100 * part
    if percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if percent < 9.95 else f"{min(percent, 99):.0f}%"


def magnitude(value: float) -> str:
    """Three significant digits, numbers up to a million in full: `65520`, `0.0124`, `3.1e-9`."""
    if not isfinite(value):
        return str(value)
    if 1000 <= abs(value) < 1e6:
        return f"{value:.0f}"
    digits, _, exponent = f"{value:.3g}".partition("e")
    return f"{digits}e{int(exponent)}" if exponent else digits


def scale(value: float) -> str:
    """A loss scale: `1024`, `2^20`, `2^-3`; one that is no power of two as a magnitude."""
    if not isfinite(value) or value <= 0:
        return magnitude(value)
    significand, exponent = frexp(value)
    if significand != 0.5:
        return magnitude(value)
    return f"{value:.0f}" if 1 <= value <= PLAIN_SCALE else f"2^{exponent - 1}"


def size(count: float) -> str:
    """Bytes: `512 B`, `1.5 KiB`, `16 MiB`, `2.3 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return ""
