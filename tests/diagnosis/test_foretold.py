"""The share of a gradient that is lost, where a replay has seen more of it lost than its own cast loses, or less."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from amp_doctor.diagnosis.foretold import lost
from amp_doctor.diagnosis.profile import Layer, Profile, Site
from amp_doctor.diagnosis.serial import from_values, to_values
from amp_doctor.numerics.formats import BF16, FP16
from amp_doctor.numerics.histogram import ExponentHistogram

COUNTS = ExponentHistogram({-30: 10, -27: 10, -20: 80}, zeros=7, amax=1.5 * 2.0**-20, amin=2.0**-30)
PLAIN = Site("float32", COUNTS)
SEEN = replace(PLAIN, as_at={1.0: 2.0**-6, 128.0: 0.0, 1024.0: inf, 8.0: 1.0})


def test_without_a_replay_it_is_what_a_cast_loses() -> None:
    assert [lost(PLAIN, FP16, scale) for scale in (1.0, 8.0, 64.0)] == pytest.approx([0.2, 0.1, 0.0])


@pytest.mark.parametrize(
    ("scale", "share"),
    [
        (1.0, 1.0),  # a cast at 2^-6 leaves nothing below 2^-19
        (8.0, 0.2),  # as a cast at 1
        (128.0, 1.0),
        (1024.0, 0.0),
        (16.0, 0.1),  # a scale that was not replayed
    ],
)
def test_with_one_it_is_what_a_cast_at_another_scale_loses(scale: float, share: float) -> None:
    assert lost(SEEN, FP16, scale) == pytest.approx(share)
    assert lost(SEEN, BF16, scale) == 0.0


def test_nothing_is_lost_of_nothing() -> None:
    assert lost(Site("float32", ExponentHistogram(zeros=3), as_at={1.0: 0.0}), FP16, 1.0) == 0.0


def test_it_is_written_out_and_read_back() -> None:
    profile = Profile(layers=(Layer("fc", "Linear", None, 0, {"weight_grad": SEEN}),))
    values = json.loads(json.dumps(to_values(profile), allow_nan=False))
    (site,) = (layer["sites"]["weight_grad"] for layer in values["layers"])
    shares = {"1": 1.0, "8": 0.2, "128": 1.0, "1024": 0.0, "65536": 0.0}
    assert site["lost"]["float16"] == pytest.approx(shares)
    assert from_values(values, "a profile") == profile


def test_the_ranks_that_replayed_nothing_change_nothing() -> None:
    assert (PLAIN + SEEN).as_at == (SEEN + PLAIN).as_at == SEEN.as_at
    lower = replace(PLAIN, as_at={1.0: 2.0**-9, 65536.0: 1.0})
    assert (lower + SEEN).as_at == (SEEN + lower).as_at == {**SEEN.as_at, 1.0: 2.0**-9, 65536.0: 1.0}
