"""Where findings stand, how many there are, how sure they are, and the numbers in their sentences."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis import keep
from amp_doctor.diagnosis.facts import facts
from amp_doctor.diagnosis.profile import Operator, Source
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.diagnosis.words import count, listed, magnitude, percent, scale_words
from amp_doctor.finding import Confidence, Severity
from tests.diagnosis.miniature import miniature

if TYPE_CHECKING:
    from amp_doctor.finding import Finding

OVERFLOW = '[[site]]\nlayer = "fc{0}"\ntype = "Linear"\nrole = "activation"\nexponents = {{ 0 = 9, {1} = 1 }}\n'


def overflowing(number: int) -> list[Finding]:
    return findings(miniature("".join(OVERFLOW.format(each, 20 + each) for each in range(number))))


def test_the_worst_five_are_named_and_the_others_counted() -> None:
    assert [finding.layer for finding in overflowing(3)] == ["fc2", "fc1", "fc0"]
    found = overflowing(9)
    assert [finding.layer for finding in found] == ["fc8", "fc7", "fc6", "fc5", "fc4"]
    assert ["more layer" in finding.message for finding in found] == [False] * 4 + [True]
    assert found[-1].message.endswith("(and 4 more layers like it)")


@pytest.mark.parametrize(("amax", "words"), [(81000.0, "reaches 81,000"), (inf, "came out infinite")])
def test_what_is_infinite_from_the_start_is_not_said_to_reach_anything(amax: float, words: str) -> None:
    matmul = Operator("matmul", "attn", Source("train.py", 7), "O1/float16", "overflow", "float16", amax)
    profile = replace(miniature(OVERFLOW.format(0, 2)), operators=(matmul,))
    [finding] = findings(profile)
    assert finding.code == "AMP605"
    assert f"the result of matmul in this layer {words}" in finding.message
    assert words in keep.forward(facts(profile))[0].reason


def test_a_finding_stands_where_the_layer_is_called_else_at_the_script() -> None:
    [finding] = overflowing(1)
    assert (finding.path, finding.span.line, finding.code, finding.name) == (
        "train.py",
        1,
        "AMP605",
        "activation-overflow",
    )
    profile = miniature(OVERFLOW.format(0, 20) + "line = 42\n")
    [finding] = findings(profile)
    assert (finding.path, finding.span.line) == ("model.py", 42)
    layers = tuple(replace(layer, source=Source("net.py", 7)) for layer in profile.layers)
    [finding] = findings(replace(profile, layers=layers))
    assert (finding.path, finding.span.line) == ("net.py", 7)


def test_errors_come_before_warnings_before_notes() -> None:
    found = findings(
        miniature(
            OVERFLOW.format(0, 20)
            + OVERFLOW.format(1, 14)
            + '[[layer]]\nlayer = "bn"\ntype = "BatchNorm2d"\nbuffers = { running_var = "float16" }\n'
        )
    )
    assert [(finding.code, finding.severity) for finding in found] == [
        ("AMP605", Severity.ERROR),
        ("AMP612", Severity.WARNING),
        ("AMP606", Severity.NOTE),
    ]


def test_what_is_estimated_is_less_sure_than_what_was_counted() -> None:
    lost = '[[site]]\nlayer = "fc"\nrole = "weight_grad"\nzeros = 500\nexponents = {{ {0} = 400, -20 = 600 }}\n[precision]\n{1}\n'
    [counted] = findings(miniature(lost.format(-27, 'autocast = ["float16"]\ncalibrated = true')))
    [estimated] = findings(miniature(lost.format(-24, 'autocast = ["float16"]')))
    assert (counted.confidence, estimated.confidence) == (Confidence.HIGH, Confidence.LOW)
    assert "estimated" in estimated.message
    assert "predict" in counted.message
    [would] = overflowing(1)
    assert would.confidence is Confidence.MEDIUM


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.431, "43.1 %"),
        (0.00001, "under 0.1 %"),
        (0.99999, "over 99.9 %"),
        (0.05, "5.0 %"),
    ],
)
def test_shares(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (71234.5, "71,234"),
        (66246.39, "66,246"),
        (0.52, "0.52"),
        (3.14e-7, "3.1e-7"),
        (1.0e30, "1e30"),
        (0.0, "0"),
        (inf, "inf"),
    ],
)
def test_magnitudes(value: float, words: str) -> None:
    assert magnitude(value) == words


def test_scales_and_lists() -> None:
    assert [scale_words(s) for s in (1, 65536, 2.0**20, 2.0**23, 0.125, 3000.0)] == [
        "1",
        "65536",
        "1048576",
        "2^23",
        "2^-3",
        "3000",
    ]
    assert count(1, "layer") == "1 layer"
    assert count(1200, "layer") == "1,200 layers"
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert listed([]) == ""
