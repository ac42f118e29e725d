"""What a gradient loses under a loss scale: what its own histogram says, and what the replay knows of those before it.

A cast loses what lies below 2^-25, and the histogram has it exactly. In a backward pass in FP16 a gradient is made of
others that were rounded, and of which some were lost, so that more of it vanishes, or less where what was rounded up is
passed on. Where that was seen in a replay, the loss is that of a cast at another scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.numerics.formats import FP16

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Site
    from amp_doctor.numerics.formats import Format
    from amp_doctor.numerics.histogram import ExponentHistogram


def lost(site: Site, to: Format, scale: float) -> float:
    """The share of the non-zero elements that is lost in `to` at a loss scale."""
    return lost_of(site.histogram, site, scale) if to is FP16 else site.histogram.lost(to, scale)


def lost_of(counts: ExponentHistogram, site: Site, scale: float) -> float:
    """The share that float16 loses of some elements of a site."""
    as_at = site.as_at.get(scale, scale)
    if not as_at:
        return 1.0 if counts.nonzero else 0.0
    return counts.lost(FP16, as_at)
