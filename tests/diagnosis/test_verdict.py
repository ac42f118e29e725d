"""A recommendation that was tried: what the numbers of the runs say about it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan

import pytest

from amp_doctor.diagnosis.profile import (
    WEIGHT_GRAD,
    Device,
    Layer,
    Operator,
    OptimizerLog,
    Outcome,
    Precision,
    Profile,
    Replay,
    Site,
    Source,
    Steps,
)
from amp_doctor.diagnosis.recommendation import KeepFP32, LossScale, Recommendation, Run, Verified, to_values
from amp_doctor.diagnosis.revise import next_best
from amp_doctor.diagnosis.verdict import (
    INCONCLUSIVE,
    REFUTED,
    VERIFIED,
    distance,
    judge,
    lost,
    run_of,
)
from amp_doctor.diagnosis.written import in_float32_already, own_casts
from amp_doctor.numerics.histogram import ExponentHistogram

# 1, 1/2, 1/4, ... : ten steps.
HALVING = tuple(2.0**-step for step in range(10))


def run(loss: tuple[float, ...], skipped: int = 0, lost: float | None = 0.0, failure: str = "") -> Run:
    return Run("a run", loss, skipped, lost, 1.0, len(loss), failure)


FULL = run(HALVING)


def moved(by: float) -> tuple[float, ...]:
    return tuple(loss * (1 + by) for loss in HALVING)


def test_equal_losses_verify() -> None:
    assert judge(FULL, run(HALVING)).verdict == VERIFIED


@pytest.mark.parametrize(
    ("by", "verdict"), [(0.04, VERIFIED), (0.06, REFUTED), (-0.04, VERIFIED), (-0.9, INCONCLUSIVE)]
)
def test_five_percent_may_be_rounding(by: float, verdict: str) -> None:
    assert judge(FULL, run(moved(by))).verdict == verdict


def test_a_float32_run_that_skips_its_steps_refutes_nothing() -> None:
    told = judge(run(HALVING, skipped=10), run(HALVING, skipped=10))
    assert told.verdict == INCONCLUSIVE
    assert told.reason == "the FP32 run fails as well: 10 of 10 steps were skipped for infinite gradients"
    assert judge(FULL, run(HALVING, skipped=10)).verdict == REFUTED


def test_what_the_script_casts_itself_is_told_with_its_line() -> None:
    div = Operator("div", "Density", Source("src/net.py", 9), "O0/float16", "underflow", "float16")
    own = Replay(outcomes=(Outcome("O0/float16", 0.5, inf),))
    assert own_casts(Profile(operators=(div,), replay=own)) == (
        "; the script itself casts to half, and what goes wrong in it is div at net.py:9: that stays so without autocast"
    )
    assert own_casts(Profile(operators=(div,), replay=Replay())) == ""
    assert in_float32_already(Profile(replay=own)) == ""
    assert in_float32_already(Profile(precision=Precision(autocast=("float16",)))) == ""
    assert "nothing to verify" in in_float32_already(Profile())


def test_what_goes_both_ways_may_lie_farther_apart() -> None:
    scattered = tuple(1 + (0.15 if step % 2 else -0.15) for step in range(10))
    assert judge(run((1.0,) * 10), run(scattered)).verdict == VERIFIED
    assert judge(run((1.0,) * 10), run(tuple(1 + abs(one - 1) for one in scattered))).verdict == REFUTED


def test_a_difference_that_two_float32_runs_show_as_well_refutes_nothing() -> None:
    assert judge(FULL, run(moved(0.5)), run(moved(0.1))).verdict == REFUTED
    told = judge(FULL, run(moved(0.5)), run(moved(-0.25)))
    assert told.verdict == INCONCLUSIVE
    assert "two FP32 runs" in told.reason


def test_what_any_rounding_drives_apart_refutes_nothing() -> None:
    told = judge(FULL, run(moved(0.5)), FULL, run(moved(-0.25)))
    assert told.verdict == INCONCLUSIVE
    assert "weights changed in their fourth digit" in told.reason
    told = judge(FULL, run(moved(0.5)), FULL, run(moved(0.1)))
    assert (told.verdict, told.by_loss) == (REFUTED, True)
    assert judge(FULL, run(moved(0.5)), FULL, run((), failure="ValueError")).verdict == REFUTED


def test_four_steps_are_too_few_and_five_are_enough() -> None:
    assert judge(run(HALVING[:4]), run(HALVING[:4])).verdict == INCONCLUSIVE
    assert judge(run(HALVING[:5]), run(HALVING[:5])).verdict == VERIFIED


def test_a_skipped_step_delays_the_others() -> None:
    late = (1.0, *HALVING[:9])
    assert judge(FULL, run(late, skipped=1)).verdict == VERIFIED
    assert judge(FULL, run(late, skipped=0)).verdict == REFUTED


def test_one_step_in_ten_may_be_skipped() -> None:
    flat = (1.0,) * 30
    assert judge(run(flat), run(flat, skipped=3)).verdict == VERIFIED
    told = judge(run(flat), run(flat, skipped=4))
    assert told.verdict == REFUTED
    assert "4 of 30 steps" in told.reason


@pytest.mark.parametrize("value", [nan, inf])
def test_a_loss_that_is_no_number_refutes_also_where_its_step_was_skipped(value: float) -> None:
    broken = (*HALVING[:4], value, *HALVING[5:])
    assert judge(FULL, run(broken)).verdict == REFUTED
    told = judge(FULL, run(broken, skipped=1))
    assert told.verdict == REFUTED
    assert "not finite on 1 step, first on step 5" in told.reason
    assert judge(run(broken), run(HALVING)).verdict == INCONCLUSIVE


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(None, VERIFIED), (0.49, VERIFIED), (0.5, INCONCLUSIVE), (0.89, INCONCLUSIVE), (0.9, REFUTED)],
)
def test_lost_gradients_weigh_more_than_equal_losses(share: float | None, verdict: str) -> None:
    assert judge(FULL, run(HALVING, lost=share)).verdict == verdict


def test_failures() -> None:
    failed = run((), failure="RuntimeError: unsafe to autocast")
    told = judge(FULL, failed)
    assert (told.verdict, told.reason.partition(": ")[2]) == (REFUTED, "RuntimeError: unsafe to autocast")
    assert judge(failed, FULL).verdict == INCONCLUSIVE
    assert judge(FULL, failed, failed).verdict == INCONCLUSIVE
    assert judge(run(()), run(())).verdict == INCONCLUSIVE


def test_distances() -> None:
    assert distance((2.0, 4.0), (2.0, 4.0), 0) == (0.0, 0.0)
    assert distance((2.0, 4.0), (3.0, 3.0), 0) == (0.375, 0.125)
    assert distance((2.0, 4.0), (2.0, 2.0), 1) == (0.0, 0.0)
    assert distance((2.0,), (nan,), 0) == (0.0, 0.0)
    # Near zero a thousandth of the first loss is the measure: 1e-5 is 1 % of that.
    assert distance((1.0, 0.0, 0.0), (1.0, 1e-5, 1e-5), 0)[0] == pytest.approx(2 / 3 * 1e-2)


def gradients(zeros: int, others: int) -> Profile:
    counts = ExponentHistogram({-3: others} if others else {}, zeros)
    return Profile(layers=(Layer("fc", sites={WEIGHT_GRAD: Site("float32", counts)}),))


def test_lost_is_what_is_zero_and_was_not() -> None:
    assert lost(gradients(20, 80), gradients(20, 80)) == 0
    assert lost(gradients(20, 80), gradients(60, 40)) == 0.5
    # Half as many steps counted.
    assert lost(gradients(20, 80), gradients(30, 20)) == 0.5
    assert lost(gradients(20, 80), gradients(100, 0)) == 1
    assert lost(gradients(20, 80), gradients(0, 100)) == 0
    assert lost(gradients(100, 0), gradients(100, 0)) is None
    assert lost(Profile(), gradients(1, 1)) is None


def test_a_run_is_read_from_its_profile() -> None:
    logs = (OptimizerLog("SGD", 10, 10, 0), OptimizerLog("Adam", 10, 7, 3))
    profile = replace(gradients(60, 40), loss=HALVING, optimizers=logs, seconds=2.5, steps=Steps(10, 10, 10, 0))
    assert run_of("float16", profile, gradients(20, 80)) == Run("float16", HALVING, 3, 0.5, 2.5, 10)


ADVICE = Recommendation("float16", "O1", LossScale(True, 1024.0, (1.0, 2048.0)))


def test_next_best() -> None:
    cpu = Profile(device=Device("cpu"))
    second = next_best(ADVICE, cpu)
    assert second is not None
    assert (second.dtype, second.opt_level) == ("bfloat16", "O1")
    assert "bfloat16" in second.snippet
    third = next_best(second, cpu)
    assert third is not None
    assert (third.dtype, third.opt_level) == ("float32", "O0")
    assert next_best(third, cpu) is None


def test_after_bfloat16_comes_float16_where_it_is_known_what_mends_it() -> None:
    mul = Operator("mul", "head", Source("m.py", 3), "O1/float16", "overflow", "float16", 1e6)
    profile = Profile(device=Device("cpu"), operators=(mul,), replay=Replay(keep=("head: mul",)))
    kept = (KeepFP32("head", "overflows", "mul", mul.source, whole=False),)
    first = replace(ADVICE, dtype="bfloat16", keep_fp32=kept)
    second = next_best(first, profile, ["bfloat16"])
    assert second is not None
    assert (second.dtype, second.opt_level, second.keep_fp32) == ("float16", "O1", kept)
    third = next_best(second, profile, ["bfloat16", "float16"])
    assert third is not None
    assert third.dtype == "float32"
    # After float16 nothing of it is tried again; without a way to mend it neither.
    for one, refuted in ((first, ["float16", "bfloat16"]), (replace(first, keep_fp32=()), ["bfloat16"])):
        other = next_best(one, profile, refuted)
        assert other is not None
        assert other.dtype == "float32"


def test_a_gpu_without_bf16_goes_back_to_float32() -> None:
    turing = Profile(device=Device("cuda", "Tesla T4", (7, 5)))
    second = next_best(ADVICE, turing)
    assert second is not None
    assert second.dtype == "float32"


def test_json_has_no_nan() -> None:
    assert to_values(ADVICE)["verified"] is None
    proof = Verified("refuted", 2, (Run("float32", (1.0, nan, -inf)),), "why", "bfloat16")
    values = json.loads(json.dumps(to_values(replace(ADVICE, verified=proof)), allow_nan=False))["verified"]
    assert (values["verdict"], values["steps"], values["instead"]) == ("refuted", 2, "bfloat16")
    assert {"settings", "loss", "skipped", "lost", "seconds"} <= values["runs"][0].keys()
    assert values["runs"][0]["loss"] == [1.0, "nan", "-inf"]
