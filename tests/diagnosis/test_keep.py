"""What a replayed step has tried is in the recommendation: the operator, its line and why, and code that shows how."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from amp_doctor.diagnosis.profile import Device, Layer, Operator, Outcome, Profile, Replay, Site, Source
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.recommendation import KeepFP32, from_values, to_values
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.numerics.histogram import ExponentHistogram
from tests.diagnosis.test_recommend import CPU, H200, HEALTHY, T4

LINE = Source("src/model.py", 26)
MATMUL = Operator("matmul", "attn", LINE, "O1/float16", "overflow", "float16", 181_662.0)
CANCELS = Operator("sub", "attn", LINE, "O1/float16", "precision", "float16", 2.0, error=0.8)
BANNED = Operator("binary_cross_entropy", "", Source("train.py", 9), "O1/float16", "banned", "float16")
GOOD = (Outcome("O1/float16", 1e-4, 1e-3), Outcome("O1/bfloat16", 1e-3, None))


def replayed(*operators: Operator, keep: tuple[str, ...] = (), outcomes: tuple[Outcome, ...] = GOOD) -> Profile:
    return replace(HEALTHY, operators=operators, replay=Replay(keep=keep, outcomes=outcomes))


def test_an_operator_is_named_with_its_line_and_why() -> None:
    [kept] = recommend(replace(replayed(MATMUL, keep=("attn: matmul",)), device=T4)).keep_fp32
    assert kept == KeepFP32(
        "attn", "the result of matmul in this layer reaches 181,662; FP16 ends at 65504", "matmul", LINE, whole=False
    )
    assert kept.name == "matmul at model.py:26, in attn"


def test_the_snippet_shows_what_to_do_at_the_line() -> None:
    found = recommend(replace(replayed(MATMUL, keep=("attn: matmul",)), device=T4))
    assert found.dtype == "float16"
    assert "#     matmul at model.py:26, in attn: the result of matmul" in found.snippet
    assert '#     with torch.autocast("cuda", enabled=False):' in found.snippet
    assert "get_submodule" not in found.snippet
    compile(found.snippet, "snippet.py", "exec")


def test_a_layer_that_is_the_operator_stays_as_a_layer() -> None:
    fc1 = replace(HEALTHY.layers[0], source=LINE)
    linear = replace(MATMUL, operator="linear", layer="fc1")
    profile = replace(replayed(linear, keep=("fc1: linear",)), layers=(fc1, *HEALTHY.layers[1:]), device=T4)
    found = recommend(profile)
    assert [(one.name, one.operator, one.whole) for one in found.keep_fp32] == [("fc1", "linear", True)]
    assert 'for name in ["fc1"]:' in found.snippet


def test_what_was_not_tried_keeps_its_layer_and_who_reads_it() -> None:
    layers = (Layer("norm", "Norm", Source("m.py", 1), 0), replace(HEALTHY.layers[1], order=5))
    peak = replace(MATMUL, layer="norm")
    profile = replace(replayed(peak), layers=(*layers, HEALTHY.layers[0]), device=T4)
    assert [one.name for one in recommend(profile).keep_fp32] == ["norm", "fc2"]
    assert [one.name for one in recommend(replace(profile, replay=Replay(keep=("norm: matmul",)))).keep_fp32] == [
        "matmul at model.py:26, in norm"
    ]


@pytest.mark.parametrize(("reaches", "kept"), [(1e5, ["relu", "norm", "fc2"]), (4.0, ["norm"])])
def test_who_reads_what_fits_again_is_no_reader(reaches: float, kept: list[str]) -> None:
    """A BatchNorm between the two, say."""
    between = Layer("relu", "ReLU", None, 1, {"activation": Site("float32", ExponentHistogram.of([reaches]))})
    layers = (Layer("norm", "Norm", Source("m.py", 1), 0), between, replace(HEALTHY.layers[1], order=5))
    profile = replace(replayed(replace(MATMUL, layer="norm")), layers=(*layers, HEALTHY.layers[0]), device=T4)
    assert sorted(one.name for one in recommend(profile).keep_fp32) == sorted(kept)


def test_an_operator_that_is_too_coarse_in_float16_is_no_better_in_bfloat16() -> None:
    keep = ("attn: sub",)
    # Without a word about BF16: it has three bits fewer.
    for outcomes in ((), (Outcome("O1/bfloat16", 0.7, None),)):
        profile = replayed(CANCELS, keep=keep, outcomes=outcomes)
        for device in (CPU, T4, H200):
            found = recommend(replace(profile, device=device))
            assert (found.dtype, [one.operator for one in found.keep_fp32]) == ("float16", ["sub"])
            assert found.keep_fp32[0].reason == "its results are 80.0 % off in FP16"
    assert recommend(replace(replayed(CANCELS, keep=keep), device=CPU)).dtype == "bfloat16"


@pytest.mark.parametrize(("coarse", "expected"), [(0.001, "bfloat16"), (0.6, "float32")])
def test_where_nothing_helps_float16_is_not_recommended(coarse: float, expected: str) -> None:
    outcomes = (Outcome("O1/float16", 0.5, 0.9), Outcome("O1/bfloat16", coarse, None))
    found = recommend(replace(replayed(outcomes=outcomes), device=CPU))
    assert (found.dtype, found.keep_fp32) == (expected, ())


def test_a_loss_near_zero_proves_nothing() -> None:
    outcomes = (Outcome("O1/float16", 0.5, 0.01),)
    assert recommend(replace(replayed(outcomes=outcomes), device=CPU)).dtype == "float16"


@pytest.mark.parametrize("gradients", [float("inf"), float("nan"), 0.6])
@pytest.mark.parametrize(("device", "expected"), [(CPU, "bfloat16"), (H200, "bfloat16"), (T4, "float32")])
def test_a_step_that_fails_in_float16_with_nothing_that_mends_it(
    gradients: float, device: Device, expected: str
) -> None:
    """Gradients that are not finite under any loss scale, or off where BF16, which is coarser, gets them."""
    div = Operator("div", "attn", LINE, "O1/float16", "overflow", "float16", 1.4)
    outcomes = (Outcome("O1/float16", 1e-4, gradients, loss_scale=1.0), Outcome("O1/bfloat16", 0.003, 0.03))
    found = recommend(replace(replayed(div, outcomes=outcomes), device=device))
    assert found.dtype == expected
    assert not any("FP16 with the loss scale above" in words for words in found.would_change)
    # What brought the step back makes float16 fit again.
    tried = recommend(replace(replayed(div, keep=("attn: div",), outcomes=outcomes), device=T4))
    assert (tried.dtype, [one.operator for one in tried.keep_fp32]) == ("float16", ["div"])


@pytest.mark.parametrize("device", [CPU, H200])
def test_that_bfloat16_fails_is_why_float16_is_chosen(device: Device) -> None:
    outcomes = (Outcome("O1/float16", 0.011, 0.084), Outcome("O1/bfloat16", 0.086, 0.71))
    found = recommend(replace(replayed(outcomes=outcomes), device=device))
    assert found.dtype == "float16"
    assert found.reasons[0] == (
        "BF16 changes the loss of the replayed step by 8.6 % and its gradients by 71.0 %; "
        "FP16 has three bits more, and everything fits it"
    )


@pytest.mark.parametrize("device", [CPU, H200])
@pytest.mark.parametrize(("off", "expected"), [(0.68, "float16"), (0.4, "bfloat16")])
def test_where_half_of_the_gradients_are_wrong_in_bfloat16_float16_is_mended(
    device: Device, off: float, expected: str
) -> None:
    """As in an SSIM of images from 0 to 255; BF16 changes the loss by too little to say so."""
    outcomes = (Outcome("O1/float16", inf, inf), Outcome("O1/bfloat16", 0.074, off))
    found = recommend(replace(replayed(MATMUL, keep=("attn: matmul",), outcomes=outcomes), device=device))
    assert found.dtype == expected
    assert [one.operator for one in found.keep_fp32] == ["matmul"]
    if expected == "float16":
        assert found.reasons[0].startswith(
            "BF16 changes the loss of the replayed step by 7.4 % and its gradients by 68"
        )
    # Where nothing mends FP16 there is no choice.
    assert recommend(replace(replayed(MATMUL, outcomes=outcomes), device=device)).dtype == "bfloat16"


def test_what_autocast_refuses_needs_a_line_whatever_the_dtype() -> None:
    for device in (CPU, T4, H200, Device()):
        found = recommend(replace(replayed(BANNED), device=device))
        assert found.dtype == recommend(replace(HEALTHY, device=device)).dtype
        [kept] = found.keep_fp32
        assert (kept.refused, kept.name) == (True, "binary_cross_entropy at train.py:9")
        assert "train.py:9: CUDA's autocast refuses it" in found.snippet
        assert "binary_cross_entropy_with_logits" in found.snippet


def test_it_survives_json_and_an_older_file_is_read() -> None:
    found = recommend(replace(replayed(MATMUL, BANNED, keep=("attn: matmul",)), device=T4))
    values = json.loads(json.dumps(to_values(found)))
    assert from_values(values) == found
    assert values["keep_fp32"][0]["source"] == {"path": "src/model.py", "line": 26}
    old = {**values, "keep_fp32": [{"layer": "fc1", "reason": "it overflows"}]}
    assert from_values(old).keep_fp32 == (KeepFP32("fc1", "it overflows"),)


def test_a_whole_model_is_not_kept_for_one_operator_of_its_own() -> None:
    layers = (*HEALTHY.layers, Layer("Net", "Net", Source("m.py", 9), 7))
    found = recommend(replace(replayed(replace(MATMUL, layer="Net")), layers=layers, device=T4))
    assert [one.name for one in found.keep_fp32] == ["matmul at model.py:26, in Net"]


def test_the_snippet_has_no_blank_lines_to_spare() -> None:
    for device in (CPU, T4, H200):
        for profile in (replayed(BANNED), replayed(MATMUL, keep=("attn: matmul",)), HEALTHY):
            assert "\n\n\n" not in recommend(replace(profile, device=device)).snippet


def test_a_mask_that_does_no_harm_needs_no_float32() -> None:
    mask = replace(MATMUL, operator="where", trouble="mask", amax=1e9)
    harmless = replace(replayed(mask), device=CPU)
    assert recommend(harmless).dtype == "float16"
    assert findings(harmless) == []
    # One of which a softmax makes NaN, as of a row that is hidden as a whole, is an overflow.
    harm = replayed(replace(mask, trouble="overflow"), keep=("attn: where",))
    found = recommend(replace(harm, device=T4))
    assert [one.operator for one in found.keep_fp32] == ["where"]
    assert [(one.code, one.span.line) for one in findings(harm)] == [("AMP605", 26)]


def test_what_had_to_join_an_operator_in_float32_is_told_with_its_line() -> None:
    found = recommend(replace(replayed(CANCELS, keep=("attn: sub", "attn: mul at model.py:25")), device=T4))
    assert [one.name for one in found.keep_fp32] == ["sub at model.py:26, in attn", "mul at model.py:25, in attn"]
    assert "#     mul at model.py:25, in attn: " in found.snippet
    assert recommend(replace(replayed(keep=("attn: mul at model.py:25",)), device=T4)).keep_fp32 == ()
