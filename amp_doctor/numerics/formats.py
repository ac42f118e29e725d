"""The number formats of deep learning as a table, with the limits that decide what a cast keeps.

All limits were checked against `torch.finfo` and against casts in torch 2.13: with round-to-nearest-even a magnitude at
or below half the smallest subnormal becomes zero, and overflow begins half a unit in the last place above the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, isfinite


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    `significand` counts the explicit bits. `max` is the largest finite value. `saturates` says that a cast beyond it
    gives `max` instead of an infinity (float8_e4m3fn in torch from 2.12 on).
    """

    name: str
    significand: int
    min_exponent: int
    max: float
    saturates: bool = False

    @property
    def min_normal(self) -> float:
        """The smallest positive normal number; smaller ones lose bits of their significand."""
        return 2.0**self.min_exponent

    @property
    def min_subnormal_exponent(self) -> int:
        """The exponent of the smallest positive number."""
        return self.min_exponent - self.significand

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number."""
        return 2.0**self.min_subnormal_exponent

    @property
    def zero_threshold(self) -> float:
        """A magnitude at or below it is rounded to zero (half the smallest subnormal, ties to even)."""
        return 2.0 ** (self.min_subnormal_exponent - 1)

    @property
    def max_exponent(self) -> int:
        """The exponent of `max`."""
        return frexp(self.max)[1] - 1

    @property
    def overflow_threshold(self) -> float:
        """A magnitude from here on is rounded to infinity (or saturates)."""
        return self.max + 2.0 ** (self.max_exponent - self.significand - 1)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.significand


FP32 = Format("float32", 23, -126, 3.4028234663852886e38)
TF32 = Format("tf32", 10, -126, 3.4011621342146535e38)
FP16 = Format("float16", 10, -14, 65504.0)
BF16 = Format("bfloat16", 7, -126, 3.3895313892515355e38)
E4M3 = Format("float8_e4m3fn", 3, -6, 448.0, saturates=True)
E5M2 = Format("float8_e5m2", 2, -14, 57344.0)

FORMATS = {one.name: one for one in (FP32, TF32, FP16, BF16, E4M3, E5M2)}


def tellable(amax: float) -> tuple[bool, float]:
    """Sorts magnitudes by what they tell: an infinite one does not say how far it would have gone."""
    return isfinite(amax), amax
