"""What follows from something else is not blamed: small gradients of logits, infinities of broken weights."""

from __future__ import annotations

from dataclasses import replace

from amp_doctor.diagnosis.profile import FirstNonfinite, Layer, Precision, Profile, Site, Steps
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.numerics.histogram import ExponentHistogram
from tests.diagnosis.miniature import miniature

TAILS = ExponentHistogram({-5: 100, -60: 900}, amax=2.0**-5, amin=2.0**-60)
SOUND = ExponentHistogram({-5: 500, -8: 500}, amax=2.0**-5, amin=2.0**-8)


def profile(*layers: Layer) -> Profile:
    return Profile(mode="observe", steps=Steps(20, 20, 20), layers=layers, ranks=1)


def layer(name: str, kind: str, order: int, counts: ExponentHistogram) -> Layer:
    return Layer(name, kind, order=order, sites={"activation_grad": Site("float32", counts)})


def codes(run: Profile) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.layer) for finding in findings(run)]


def test_the_small_gradients_of_logits_do_not_vanish_on_the_way_back() -> None:
    run = profile(layer("body", "Linear", 0, SOUND), layer("head", "Linear", 1, TAILS))
    assert codes(run) == []
    assert not recommend(run).loss_scale.needed


def test_nor_do_those_of_a_model_that_ends_in_its_own_arithmetic() -> None:
    run = profile(layer("body", "Linear", 0, SOUND), layer("Clip", "Clip", 2, TAILS), layer("head", "Linear", 1, SOUND))
    assert codes(run) == []


def test_further_back_they_do() -> None:
    run = profile(layer("body", "Linear", 0, TAILS), layer("head", "Linear", 1, SOUND))
    assert codes(run) == [("AMP602", "body")]


def test_saturated_units_behind_layers_that_get_all_pass_nothing_on() -> None:
    body, head = layer("body", "Linear", 0, SOUND), layer("head", "Linear", 3, SOUND)
    mix = layer("mix", "Mix", 1, TAILS)
    inside = replace(layer("mix.proj", "Linear", 2, TAILS), sites={"weight_grad": Site("float32", TAILS)})
    assert codes(profile(body, mix, head)) == []
    # Its own weights miss them; nothing is known of what comes before; and a layer around it does not come before.
    assert codes(profile(body, mix, inside, head)) == [("AMP602", "mix"), ("AMP602", "mix.proj")]
    assert codes(profile(mix, head)) == [("AMP602", "mix")]
    around = layer("mix", "Mix", 0, SOUND)
    assert codes(profile(around, layer("mix.act", "GELU", 1, TAILS), head)) == [("AMP602", "mix.act")]
    # What has vanished further on is not well again further back.
    assert ("AMP602", "late") in codes(profile(layer("first", "RNN", 0, TAILS), layer("late", "RNN", 1, TAILS), head))


def test_logits_whose_largest_gradient_is_lost_are_no_tail() -> None:
    tiny = ExponentHistogram({-45: 1000}, amax=2.0**-45, amin=2.0**-45)
    run = profile(layer("body", "Linear", 0, SOUND), layer("head", "Linear", 1, tiny))
    assert codes(run) == [("AMP602", "head")]


def test_infinite_outputs_of_broken_weights_are_no_overflow() -> None:
    broken = ExponentHistogram({3: 10}, positive_inf=5, amax=8.0, amin=8.0)
    run = profile(Layer("0", "Linear", sites={"activation": Site("float16", broken)}))
    run = replace(run, precision=Precision(weights=("float16",)))
    assert codes(run) == [("AMP605", "0")]
    run = replace(run, first_nonfinite=FirstNonfinite(1, "optimizer", "0", "inf"))
    assert codes(run) == [("AMP607", "0")]


def test_a_weight_that_overflows_is_told_although_the_output_fits() -> None:
    large = ExponentHistogram({16: 1, -3: 99}, amax=1e5, amin=0.125)
    fits = ExponentHistogram({3: 100}, amax=8.0, amin=8.0)
    run = profile(Layer("0", "Linear", sites={"activation": Site("float32", fits), "weight": Site("float32", large)}))
    (finding,) = findings(run)
    assert (finding.code, finding.layer) == ("AMP605", "0")
    assert "a weight of this layer reaches 100,000" in finding.message


LOSING = """
[precision]
autocast = ["float16"]

[[site]]
layer = "body"
type = "Linear"
role = "activation_grad"
exponents = {{ -24 = 500, -20 = 500 }}

[[site]]
layer = "act"
type = "ReLU"
role = "activation"
zeros = 900
{more}
"""
SKIPS = """
[[scaler]]
scale = 64.0
found_inf = true
times = {times}
"""
TAKEN = """
[[scaler]]
scale = 0.25
times = {times}
"""
INFINITE = """
[[site]]
layer = "{layer}"
type = "Linear"
role = "activation"
dtype = "float16"
exponents = { 3 = 10 }
inf = 5
"""


def told(more: str) -> list[str]:
    return [finding.code for finding in findings(miniature(LOSING.format(more=more)))]


def test_without_infinities_each_is_told() -> None:
    assert told(TAKEN.format(times=20)) == ["AMP609", "AMP601", "AMP613"]


def test_a_scale_that_endless_skipping_has_brought_down_is_no_finding_of_its_own() -> None:
    assert told(SKIPS.format(times=12)) == ["AMP608", "AMP613"]


def test_nor_is_one_that_an_overflow_has_brought_down() -> None:
    skips, taken = SKIPS.format(times=8), TAKEN.format(times=12)
    assert told(skips + taken) == ["AMP609", "AMP601", "AMP613"]
    assert told(INFINITE.replace("{layer}", "head") + skips + taken) == ["AMP605", "AMP613"]
    assert told(INFINITE.replace("{layer}", "body") + skips + taken) == ["AMP605"]


def test_after_a_nan_gradients_that_are_lost_are_not_told() -> None:
    first = '[first_nonfinite]\nstep = 5\nphase = "{}"\nlayer = "act"\n'
    assert told(first.format("backward")) == ["AMP607"]


def test_what_would_be_infinite_explains_nothing_that_was_seen() -> None:
    large = '[[site]]\nlayer = "body"\ntype = "Linear"\nrole = "activation"\nexponents = { 17 = 10 }\n'
    plain = LOSING.format(more=large).replace('autocast = ["float16"]', "")
    assert [finding.code for finding in findings(miniature(plain))] == ["AMP605", "AMP613"]
