"""A replay that did not come out as the run did: nothing rests on it."""

from __future__ import annotations

from dataclasses import replace

from amp_doctor.diagnosis.profile import Operator, Outcome, Replay, Source
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.diagnosis.trust import NOT_EXACT, trusted
from tests.diagnosis.test_recommend import CPU, HALF, HEALTHY

LINE = Source("src/model.py", 26)
DRAWN = Operator("rand", "", LINE, "O1/float16", "precision", "float32", 0.9, error=0.68)
SEEN = Operator("matmul", "attn", LINE, "O1/float16", "overflow", "float32", 181_662.0)
BANNED = Operator("binary_cross_entropy", "", LINE, "O1/float16", "banned")
REPLAY = Replay(
    keep=("rand",), exact=False, outcomes=(Outcome("O1/float16", 0.3, 0.24), Outcome("O1/bfloat16", 0.58, 0.48))
)


def test_nothing_rests_on_a_replay_that_is_not_exact() -> None:
    plain = replace(HEALTHY, precision=HALF, device=CPU)
    other = replace(plain, operators=(DRAWN, BANNED), replay=REPLAY)
    assert findings(other) == findings(plain) == []
    told, expected = recommend(other), recommend(plain)
    assert (told.dtype, told.keep_fp32, told.snippet) == (expected.dtype, expected.keep_fp32, expected.snippet)
    assert told.reasons == (expected.reasons[0], NOT_EXACT, *expected.reasons[1:])


def test_the_same_replay_would_count_if_it_were_exact() -> None:
    for exact in (True, None):
        profile = replace(HEALTHY, device=CPU, operators=(DRAWN,), replay=replace(REPLAY, exact=exact))
        assert trusted(profile) == profile
        assert findings(profile)
        assert recommend(profile).dtype == "float32" or recommend(profile).keep_fp32


def test_what_the_run_itself_has_shown_stays() -> None:
    profile = replace(HEALTHY, precision=HALF, device=CPU, operators=(SEEN, DRAWN), replay=REPLAY)
    assert [one.code for one in findings(profile)] == ["AMP605"]
    assert trusted(profile).operators == (SEEN,)
