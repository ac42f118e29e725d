"""The replay of a step in the reports: precisions side by side, an estimate that says so, or why there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amp_doctor.diagnosis.profile import Memory, Operator, Outcome, Replay, Source
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.report.to_html import to_html
from amp_doctor.report.to_profile_text import to_profile_text
from tests.report.pages import HOSTILE, Seen
from tests.report.samples import SICK

REPLAY = Replay(
    0.004, 0.2, 21, 62_600_000, 0.98, 0.96, {"T4": (0.8, 1.6)}, "forward pass only", ("attn: matmul",), True,
    {"O0": 4_000_000, "O1": 2_600_000, "O2": 2_100_000, "O3": 2_000_000},
    (
        Outcome("O1/float16", 0.004, 0.2, 1, 21, 256.0),
        Outcome("O3/float16", float("inf"), None, 4, 30),
        Outcome("O0/float16", 3.2, None),
    ),
)  # fmt: skip
PROFILE = replace(SICK, replay=REPLAY)


def text(profile: object = PROFILE, width: int = 100) -> str:
    return to_profile_text(profile, [], recommend(profile), width=width, color=False)  # type: ignore[arg-type]


def section(told: str, title: str) -> str:
    return told.partition(f"{title}\n")[2].partition("\n\n")[0]


def test_precisions_stand_side_by_side() -> None:
    lines = section(text(), "Replay of one step").split("\n")
    assert lines[1:6] == [
        "    loss off  gradients off  overflows  casts  activations  precision",
        "           0              0          0      0      3.8 MiB  O0/float32",
        "        0.4%            20%          1     21      2.5 MiB  O1/float16",
        "  not finite              -          4     30      1.9 MiB  O3/float16",
        "        3.2x              -          0      0            -  O0/float16 (as written)",
    ]


def test_the_speed_up_is_called_an_estimate_and_told_once() -> None:
    told = " ".join(text().split())
    estimate = "speed: under O1 T4 0.8x to 1.6x; an estimate that nobody has measured on a GPU"
    assert f"{estimate} (--output-format json or html tells what it assumes)" in told
    assert "forward pass only" not in told
    assert "an estimate that nobody has measured on a GPU: forward pass only" in to_html(
        PROFILE, [], recommend(PROFILE)
    )
    assert told.count("0.8x to 1.6x") == 1
    assert "98% in half products, which Tensor Cores take, 96% of these in multiples of 8" in told
    assert "in FP32: the same to the last bit as in the run" in told
    assert "keep in FP32: attn: matmul (found by trying)" in told


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    told = section(text(width=width), "Replay of one step")
    assert max(map(len, told.split("\n"))) <= width
    assert ("loss off" in told) == (width >= 84)


def test_why_nothing_was_recorded_is_told() -> None:
    none = replace(SICK, replay=Replay(recorded=False, reason="the model is on a GPU"))
    assert section(text(none), "Replay of one step") == "  No step was replayed: the model is on a GPU."
    page = to_html(none, [], recommend(none))
    assert "No step was replayed: the model is on a GPU." in page
    assert "replay-table" not in Seen(page).ids
    silent = replace(SICK, replay=Replay(recorded=False))
    assert "Replay of one step" not in text(silent)
    assert "Replay of one step" not in text(SICK)
    assert "replay" not in Seen(to_html(SICK, [], recommend(SICK))).ids


def test_a_replay_that_is_not_exact_says_so() -> None:
    told = " ".join(text(replace(SICK, replay=replace(REPLAY, exact=False))).split())
    assert "in FP32: not as in the run: nothing rests on it" in told
    assert "O0/float32" not in told
    assert "found by trying" not in told
    drawn = Operator("rand", "", Source("m.py", 3), "O1/float16", "precision", "float32", 0.9, error=0.7)
    profile = replace(SICK, operators=(drawn,), replay=replace(REPLAY, exact=False))
    assert "rand:" not in text(profile)
    assert Seen(to_html(profile, [], recommend(profile))).values["operators"] == []
    assert "rand:" in text(replace(profile, replay=REPLAY))


@pytest.mark.parametrize(("top", "said"), [(1.04, True), (1.06, False)])
def test_that_no_gain_is_to_be_expected_is_a_plain_sentence(top: float, said: bool) -> None:
    profile = replace(SICK, replay=replace(REPLAY, speed={"T4": (0.7, 0.9), "H100": (0.6, top)}))
    words = "do not expect a speed-up from autocast here: under O1 T4 0.7x to 0.9x"
    assert (words in " ".join(text(profile).split())) == said
    assert (words in to_html(profile, [], recommend(profile))) == said
    assert recommend(profile).speed["replayed"].startswith("do not expect") == said


def test_a_healthy_run_is_told_in_few_lines() -> None:
    good = replace(REPLAY, keep=(), outcomes=(Outcome("O1/float16", 2e-4, 0.03), Outcome("O1/bfloat16", 0.004, None)))
    well = replace(SICK, first_nonfinite=None, ended="steps", operators=(), replay=good, memory=Memory(1000, 0, 10**6))
    assert section(text(well, 200), "Replay of one step").strip() == (
        "One recorded step comes out under autocast as in FP32, which gave the same bits again: "
        "float16 is <0.1% off in its loss and 3.0% in its gradients and bfloat16 is 0.4% off in its loss."
    )
    assert len(section(text(well), "What was measured").split("\n")) <= 3
    assert len(section(text(well), "Memory and speed (estimates)").split("\n")) <= 3
    assert 'id="replay-table"' in to_html(well, [], recommend(well))
    # What is not as in FP32 is told in full, and so is a run that did not come to its end.
    for other in (
        replace(well, replay=replace(good, outcomes=(Outcome("O1/float16", 2e-4, 0.3),))),
        replace(well, replay=replace(good, exact=False)),
        replace(well, ended="exception"),
    ):
        assert "loss off  gradients off" in text(other)


def test_that_float16_fails_stands_where_its_loss_scale_would() -> None:
    fails = replace(REPLAY, keep=(), outcomes=(Outcome("O1/float16", 1e-4, float("inf")),))
    well = replace(SICK, layers=SICK.layers[:1], first_nonfinite=None, operators=(), replay=fails)
    told = to_profile_text(well, [], replace(recommend(well), dtype="bfloat16"), width=100, color=False)
    assert "float16?:   no, the replayed step does not come out right in it" in told
    assert "float16?:   init_scale" in to_profile_text(
        replace(well, replay=None), [], replace(recommend(well), dtype="bfloat16"), width=100, color=False
    )


def test_what_only_the_replay_has_seen_is_called_so() -> None:
    one = Operator("mul", "attn", Source("m.py", 3), "O1/float16", "precision", "float16", 2.0, 0.0, 0.4)
    plain = replace(PROFILE, operators=(one,), precision=replace(SICK.precision, autocast=(), weights=("float32",)))
    assert "40% off, float16 in the replay, attn" in " ".join(text(plain).split())
    assert "seen in float16" in " ".join(text(replace(PROFILE, operators=(one,))).split())


def test_the_page_has_the_same_table() -> None:
    page = to_html(PROFILE, [], recommend(PROFILE))
    seen = Seen(page)
    assert {"replay", "replay-table"} <= set(seen.ids)
    assert "<td>O1/float16</td>" in page
    assert "an estimate that nobody has measured on a GPU" in page


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_a_replay_are_names(name: str) -> None:
    hostile = replace(REPLAY, keep=(name,), assumptions=name, speed={name: (1.0, 2.0)})
    calm = replace(REPLAY, keep=("a",), assumptions="b", speed={"c": (1.0, 2.0)})
    pages = [Seen(to_html(one, [], recommend(one))) for one in (replace(SICK, replay=r) for r in (hostile, calm))]
    assert pages[0].tags == pages[1].tags
    assert "\x1b" not in text(replace(SICK, replay=hostile))


def test_operators_tell_their_pass_and_their_error() -> None:
    one = Operator("mul", "attn", Source("m.py", 3), "O1/float16", "precision", "float16", 2.0, 0.0, 0.4)
    profile = replace(PROFILE, operators=(one, replace(one, phase="backward", error=0.01)))
    lines = section(text(profile), "Operators").split("\n")
    assert lines[0].split(maxsplit=1) == [
        "mul:", "precision under O1/float16, reaches 2, 40% off, seen in float16, attn, m.py:3"
    ]  # fmt: skip
    assert lines[1].startswith("  mul, backward: precision under O1/float16, reaches 2, seen in")
    values = Seen(to_html(profile, [], recommend(profile))).values
    assert [row[12] for row in values["operators"]] == ["forward", "backward"]


def test_memory_says_what_was_computed() -> None:
    profile = replace(PROFILE, memory=Memory(1000, 2000, 1_000_000))
    told = " ".join(text(profile).split())
    assert "of that activations O0 977 KiB O1 635 KiB O2 513 KiB O3 488 KiB (computed from the replayed step)" in told
    assert "what of the activations is half was computed from the replayed step for O0, O1, O2 and O3" in told
    some = replace(profile, replay=replace(REPLAY, activations={"O0": 4_000_000, "O1": 2_600_000}))
    assert "O2 488 KiB O3 488 KiB (partly computed)" in " ".join(text(some).split())
    assert "(as usual for a model)" in " ".join(text(replace(profile, replay=None)).split())
