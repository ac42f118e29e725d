"""A profile is a monoid, and goes to JSON and back unharmed."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, isnan, nan

import pytest
from hypothesis import HealthCheck, given, settings

from amp_doctor.diagnosis.profile import Device, FirstNonfinite, Layer, Profile, ScalerEvent, Site, Steps
from amp_doctor.diagnosis.serial import SCHEMA, from_values, to_values
from amp_doctor.errors import ProfileError
from amp_doctor.numerics.histogram import ExponentHistogram
from tests.diagnosis.strategies import profiles

SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
HERE = profiles(Device("cpu", "a CPU"))


def same(a: Profile, b: Profile) -> bool:
    """Equal, losses up to rounding."""
    close = len(a.loss) == len(b.loss) and all(
        x == pytest.approx(y) or (isnan(x) and isnan(y)) for x, y in zip(a.loss, b.loss, strict=True)
    )
    # Where a rank disagrees on the mode, one of them speaks; ranks of one run never do.
    return close and replace(a, loss=()) == replace(b, loss=())


@given(HERE, HERE, HERE)
@SLOW
def test_merging_is_associative(a: Profile, b: Profile, c: Profile) -> None:
    assert same((a + b) + c, a + (b + c))


@given(HERE, HERE)
@SLOW
def test_merging_is_commutative(a: Profile, b: Profile) -> None:
    assert same(a + b, b + a)


@given(profiles())
@SLOW
def test_the_empty_profile_is_the_zero(a: Profile) -> None:
    assert a + Profile() == a == Profile() + a


@given(profiles())
@SLOW
def test_json_and_back(profile: Profile) -> None:
    text = json.dumps(to_values(profile), allow_nan=False)
    assert from_values(json.loads(text), "p.json") == profile
    assert from_values({"profile": json.loads(text), "findings": []}, "report.json") == profile


def test_a_nan_survives_json() -> None:
    profile = Profile(loss=(1.0, nan, inf, -inf), scaler=(ScalerEvent(1, inf, True),))
    back = from_values(json.loads(json.dumps(to_values(profile), allow_nan=False)), "p.json")
    assert isnan(back.loss[1])
    assert back.loss[2:] == (inf, -inf)
    assert back.scaler == profile.scaler


def test_two_ranks_add_up() -> None:
    def rank(number: int) -> Profile:
        site = Site("float32", ExponentHistogram.of([2.0**-number, 0.0]))
        layer = Layer("fc", "Linear", None, 0, {"weight_grad": site})
        met = FirstNonfinite(5 - number, "forward", "fc")
        return Profile(
            steps=Steps(10, 10, 9, 1),
            ranks=1,
            loss=(float(number),),
            layers=(layer,),
            first_nonfinite=met,
            ended="steps",
        )

    both = rank(1) + rank(3)
    assert (both.ranks, both.loss, both.steps.attempted) == (2, (2.0,), 10)
    assert both.first_nonfinite is not None
    assert both.first_nonfinite.step == 2
    counts = both.layers[0].sites["weight_grad"].histogram
    assert (counts.exponents, counts.zeros, counts.amax, counts.amin) == ({-1: 1, -3: 1}, 2, 0.5, 0.125)


VALUES = to_values(Profile(layers=(Layer("fc", sites={"weight": Site("float32", ExponentHistogram.of([1.0]))}),)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "not a profile of amp-doctor"),
        ({"schema": 1}, "not a profile of amp-doctor"),
        ({**VALUES, "schema": SCHEMA + 1}, f"schema {SCHEMA + 1} is newer"),
        ({**VALUES, "schema": "x"}, "schema 'x' is newer"),
        ({key: value for key, value in VALUES.items() if key != "steps"}, "a broken profile: KeyError: 'steps'"),
        ({**VALUES, "steps": 3}, "a broken profile: TypeError"),
        ({**VALUES, "layers": [{**VALUES["layers"][0], "sites": {"weight": {}}}]}, "a broken profile: KeyError"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(values: object, words: str) -> None:
    with pytest.raises(ProfileError) as error:
        from_values(values, "p.json")
    assert str(error.value).startswith("p.json: ")
    assert words in str(error.value)


def test_counts_that_do_not_add_up_are_refused() -> None:
    site = VALUES["layers"][0]["sites"]["weight"]
    broken = {**VALUES, "layers": [{**VALUES["layers"][0], "sites": {"weight": {**site, "elements": 7}}}]}
    with pytest.raises(ProfileError, match="counts 7 elements, its parts 1"):
        from_values(broken, "p.json")
