"""What a tensor holds, by exponent: one histogram answers every format and every power-of-two loss scale.

A loss scale of 2^k moves the histogram by k; so counts taken under different scales add up once each is moved back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import frexp, inf, isinf, isnan, nextafter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amp_doctor.numerics.formats import Format


@dataclass(frozen=True, slots=True)
class ExponentHistogram:
    """`exponents[e]` counts the finite non-zero elements with 2^e <= |x| < 2^(e+1).

    `amax` and `amin` are the largest and smallest magnitude among them, exact; 0 and infinity while there are none.
    `high` and `low` are the largest and the smallest finite value with their signs.
    It is a monoid: `a + b` is the histogram of both, and `ExponentHistogram()` its zero.
    """

    exponents: Mapping[int, int] = field(default_factory=dict)
    zeros: int = 0
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0
    amax: float = 0.0
    amin: float = inf
    high: float = -inf
    low: float = inf

    @classmethod
    def of(cls, values: Iterable[float]) -> ExponentHistogram:
        """The histogram of Python floats; the reference that the counting of tensors is tested against."""
        exponents: dict[int, int] = {}
        zeros = nan = positive = negative = 0
        finite: list[float] = []
        for value in values:
            if isnan(value):
                nan += 1
            elif isinf(value):
                positive, negative = positive + (value > 0), negative + (value < 0)
            else:
                finite.append(value)
                if value == 0:
                    zeros += 1
                else:
                    exponent = frexp(value)[1] - 1
                    exponents[exponent] = exponents.get(exponent, 0) + 1
        magnitudes = [abs(value) for value in finite if value]
        return cls(
            exponents,
            zeros,
            nan,
            positive,
            negative,
            max(magnitudes, default=0.0),
            min(magnitudes, default=inf),
            max(finite, default=-inf),
            min(finite, default=inf),
        )

    @property
    def inf(self) -> int:
        """How many elements are infinite."""
        return self.positive_inf + self.negative_inf

    @property
    def nonzero(self) -> int:
        """How many elements are finite and not zero."""
        return sum(self.exponents.values())

    @property
    def elements(self) -> int:
        """How many elements were counted."""
        return self.nonzero + self.zeros + self.nan + self.inf

    def __add__(self, other: ExponentHistogram) -> ExponentHistogram:
        counts = dict(self.exponents)
        for exponent, count in other.exponents.items():
            counts[exponent] = counts.get(exponent, 0) + count
        return ExponentHistogram(
            counts,
            self.zeros + other.zeros,
            self.nan + other.nan,
            self.positive_inf + other.positive_inf,
            self.negative_inf + other.negative_inf,
            max(self.amax, other.amax),
            min(self.amin, other.amin),
            max(self.high, other.high),
            min(self.low, other.low),
        )

    def shifted(self, k: int) -> ExponentHistogram:
        """The histogram of the same elements times 2^k."""
        if k == 0:
            return self
        factor = 2.0**k
        return ExponentHistogram(
            {exponent + k: count for exponent, count in self.exponents.items()},
            self.zeros,
            self.nan,
            self.positive_inf,
            self.negative_inf,
            self.amax * factor,
            self.amin * factor,
            self.high * factor,
            self.low * factor,
        )

    def lost(self, to: Format, scale: float = 1.0) -> float:
        """The share of the non-zero elements that a cast to `to` rounds to zero after multiplication by `scale`.

        Exact for a power of two, save for elements that equal the threshold, unless `amin` or `amax` settles them.
        Between powers of two a bin is taken to be uniform.
        """
        # The threshold itself is rounded to zero too (ties to even).
        return self._share_below(nextafter(to.zero_threshold / scale, inf))

    def subnormal(self, to: Format, scale: float = 1.0) -> float:
        """The share of the non-zero elements that stay, but below the smallest normal number, with fewer bits."""
        return max(0.0, self._share_below(to.min_normal / scale) - self.lost(to, scale))

    def overflowing(self, to: Format, scale: float = 1.0) -> float:
        """The share of the non-zero elements that a cast to `to` turns into an infinity, or saturates."""
        threshold = to.overflow_threshold / scale
        if self.amax < threshold or not self.nonzero:
            return 0.0
        share = 1.0 - self._share_below(threshold)
        # At least the largest element overflows, however thin the part of its bin above the threshold.
        return max(share, 1.0 / self.nonzero)

    def _share_below(self, threshold: float) -> float:
        total = self.nonzero
        if not total or threshold <= self.amin:
            return 0.0
        if threshold > self.amax:
            return 1.0
        significand, exponent = frexp(threshold)
        # In the bin of the threshold 2^(e) <= |x| < 2^(e+1), the part below it when the bin is uniform.
        edge = exponent - 1
        part = 2 * significand - 1
        below = sum(count for e, count in self.exponents.items() if e < edge)
        return (below + self.exponents.get(edge, 0) * part) / total
