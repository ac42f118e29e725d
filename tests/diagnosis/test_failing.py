"""A script that ended badly in the precision that it asks for: mend that first, and not the same again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amp_doctor.diagnosis.profile import FirstNonfinite, Operator, Outcome, Precision, Replay, ScalerEvent, Source
from amp_doctor.diagnosis.recommend import recommend
from tests.diagnosis.test_recommend import CPU, H200, HALF, HEALTHY, T4

NAN = FirstNonfinite(1, "forward", "fc1", "nan", None, Source("src/net.py", 8))
SKIPS = tuple(ScalerEvent(step, 2.0**-step, True, "fc2") for step in range(1, 21))
AS_IS = replace(HEALTHY, precision=HALF, device=CPU)
RAISED = (
    "the script raised RuntimeError: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
    "autocast. (/src/train.py:13)"
)


@pytest.mark.parametrize("device", [CPU, T4, H200])
def test_nan_at_the_end_is_to_be_mended_first(device: object) -> None:
    ended = replace(AS_IS, first_nonfinite=NAN, loss=(1.0, float("nan")), device=device)  # type: ignore[arg-type]
    found = recommend(ended)
    assert found.dtype == ("float32" if device is T4 else "bfloat16")
    assert found.reasons[0].startswith("the script ended in NaN or infinities, the first of them NaN in step 1, in fc1")
    assert "at net.py:8: mend that first" in found.reasons[0]
    assert not any("every output fits" in reason for reason in found.reasons)


def test_the_line_is_that_of_the_operator_where_one_is_known() -> None:
    exp = Operator("exp", "fc1", Source("src/net.py", 3), "O0/float16", "overflow", "float16", 3.8e9)
    half = replace(HEALTHY, precision=Precision(weights=("float16",)), first_nonfinite=NAN, operators=(exp,))
    assert "NaN in step 1, from exp at net.py:3, in fc1: mend that first" in recommend(half).reasons[0]


def test_weights_in_half_that_became_nan_are_no_reason_for_float16() -> None:
    ended = replace(HEALTHY, precision=Precision(weights=("float16",)), first_nonfinite=NAN, device=CPU)
    assert recommend(ended).dtype == "bfloat16"
    both = replace(ended, precision=Precision(("bfloat16",), False, ("float16",)))
    assert recommend(both).dtype == "float32"
    assert recommend(replace(ended, precision=Precision(("bfloat16",), False, ("float32",)))).dtype == "float32"


@pytest.mark.parametrize(
    ("step", "error", "dtype"),
    [(1, 1e-5, "float16"), (2, 1e-5, "float16"), (5, 1e-5, "bfloat16"), (1, 0.3, "bfloat16")],
)
def test_half_weights_that_the_replay_does_without(step: int, error: float, dtype: str) -> None:
    """What breaks later than the step that is replayed is not that step's."""
    replay = Replay(exact=True, outcomes=(Outcome("O1/float16", error, error), Outcome("O1/bfloat16", 1e-4, 1e-4)))
    half = Precision(weights=("float16",))
    broken = replace(HEALTHY, precision=half, first_nonfinite=replace(NAN, step=step), replay=replay, device=CPU)
    found = recommend(broken)
    assert found.dtype == dtype
    told = "mend that first; keep the weights in FP32 and leave the casts to autocast: so the replayed step comes right"
    assert found.reasons[0].endswith(told) == (dtype == "float16")


def test_what_the_scaler_skips_while_it_looks_for_its_scale_is_no_end() -> None:
    warm_up = replace(AS_IS, first_nonfinite=NAN, loss=(1.0, float("nan"), 0.5), scaler=SKIPS[:3])
    assert recommend(warm_up).reasons == recommend(replace(AS_IS, loss=(1.0,), scaler=SKIPS[:3])).reasons
    assert recommend(warm_up).dtype == "float16"


def test_skipping_to_the_end_is_to_be_mended_first() -> None:
    found = recommend(replace(AS_IS, scaler=SKIPS))
    assert (found.dtype, found.reasons[0].partition(";")[0]) == (
        "bfloat16",
        "the scaler skipped 20 of 20 steps for what came from fc2: mend that first",
    )
    # An operator that was found by trying is what mends it: FP16 may stay, and has been seen to skip already.
    line = Source("src/net.py", 9)
    div = Operator("div", "fc1", line, "O1/float16", "underflow", "float16", 1e-9, 1.0, 1.0)
    replay = Replay(keep=("fc1: div",), outcomes=(Outcome("O1/float16", 0.5, float("inf")),))
    kept = recommend(replace(AS_IS, scaler=SKIPS, operators=(div,), replay=replay, device=T4))
    assert (kept.dtype, [one.operator for one in kept.keep_fp32]) == ("float16", ["div"])
    assert "mend that first" in kept.reasons[0]
    assert not any("skipping" in words for words in kept.would_change)


def test_the_error_that_ended_the_run_is_not_pasted_again() -> None:
    found = recommend(replace(AS_IS, ended="exception", notes=(RAISED,)))
    assert found.reasons[0].startswith(
        "the script ended in an error of binary_cross_entropy at train.py:13, which CUDA's autocast refuses: mend that"
    )
    assert found.dtype == "float16"
    [kept] = found.keep_fp32
    assert (kept.operator, kept.source, kept.refused) == ("binary_cross_entropy", Source("/src/train.py", 13), True)
    # The loss is computed outside of the region.
    assert "    output = model(x)\n    loss = criterion(output.float(), y)" in found.snippet
    banned = Operator("binary_cross_entropy", "", Source("/src/train.py", 13), "O1/float16", "banned")
    assert len(recommend(replace(AS_IS, ended="exception", notes=(RAISED,), operators=(banned,))).keep_fp32) == 1
    # An error that has nothing to do with dtypes says nothing about them.
    other = "the script raised FileNotFoundError: no such file (/src/train.py:3)"
    assert recommend(replace(AS_IS, ended="exception", notes=(other,))).reasons == recommend(AS_IS).reasons


FILLED = Source("/src/net.py", 15)
OVERFLOWED = (
    "the script raised RuntimeError: value cannot be converted to type c10::Half without overflow (/src/net.py:15)"
)


def test_a_constant_that_half_cannot_hold_is_to_be_mended_first() -> None:
    fill = Operator("masked_fill_", "1", FILLED, "", "unsupported", "float16", 1e9)
    found = recommend(replace(AS_IS, ended="exception", notes=(OVERFLOWED,), operators=(fill,)))
    assert found.reasons[0].startswith(
        "the script ended in an error of masked_fill_ at net.py:15, whose constant FP16 cannot hold: mend that first;"
    )
    [kept] = found.keep_fp32
    assert (kept.operator, kept.source, kept.refused) == ("masked_fill_", FILLED, True)
    assert kept.reason == "FP16 cannot hold 1e9, and it raises an error"


def test_an_error_of_the_scaler_is_to_be_mended_first() -> None:
    note = (
        "the script raised RuntimeError: step() has already been called since the last update(). (/src/train.py:15); "
        "there is no GPU here"
    )
    found = recommend(replace(AS_IS, ended="exception", notes=(note,)))
    assert found.dtype == "float16"
    assert found.keep_fp32 == ()
    assert found.reasons[0].startswith(
        "the script ended in an error of the GradScaler at train.py:15 "
        "(step() has already been called since the last update()): mend that first;"
    )
