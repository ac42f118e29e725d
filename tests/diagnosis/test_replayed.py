"""What a replayed step says survives the file, and is told among the estimates."""

from __future__ import annotations

import json
from dataclasses import replace

from amp_doctor.diagnosis.hardware import speed
from amp_doctor.diagnosis.profile import Operator, Outcome, Profile, Replay, Source
from amp_doctor.diagnosis.serial import from_values, to_values

REPLAY = Replay(
    1e-4, float("inf"), 12, 4_000, 0.9, 0.5, {"T4": (0.8, 2.5), "A100": (0.5, 3.0)}, "launches wait", ("attn: matmul",),
    True, {"O0": 400, "O1": 300, "O2": 250, "O3": 200},
    (Outcome("O1/float16", 1e-4, float("inf"), 2, 12, 256.0), Outcome("O3/float16", 0.5)),
    lines=(Source("a.py", 3),),
)  # fmt: skip


def test_to_a_file_and_back() -> None:
    profile = replace(Profile(), replay=REPLAY)
    assert from_values(json.loads(json.dumps(to_values(profile))), "run.json").replay == REPLAY
    assert from_values(json.loads(json.dumps(to_values(Profile()))), "run.json").replay is None


def test_a_file_of_an_older_version_is_read() -> None:
    operator = Operator("matmul", "attn", Source("a.py", 3), "O1/float16", "overflow", "float16", 7e4)
    profile = replace(Profile(), replay=REPLAY, operators=(operator,))
    values = json.loads(json.dumps(to_values(profile)))
    del values["operators"][0]["phase"]
    for name in ("exact", "activations", "outcomes", "recorded", "reason", "lines"):
        del values["replay"][name]
    read = from_values(values, "run.json")
    assert read.operators == (operator,)
    assert read.replay == replace(REPLAY, exact=None, activations={}, outcomes=(), lines=())


def test_a_step_that_was_recorded_on_one_rank_is_kept() -> None:
    none = Replay(recorded=False, reason="not rank 0")
    a, b = replace(Profile(ranks=1), replay=REPLAY), replace(Profile(ranks=1), replay=none)
    assert (a + b).replay == (b + a).replay == REPLAY


def test_ranks_keep_one() -> None:
    other = replace(REPLAY, casts=3)
    a, b = replace(Profile(ranks=1), replay=REPLAY), replace(Profile(ranks=1), replay=other)
    assert (a + b).replay == (b + a).replay
    assert (a + Profile(ranks=1)).replay == REPLAY


def test_ranges_are_told_with_their_assumptions() -> None:
    words = speed(replace(Profile(), replay=REPLAY))["replayed"]
    assert words.startswith("under O1 T4 0.8x to 2.5x, A100 0.5x to 3.0x")
    assert "90 % of the FLOPs on Tensor Cores, 50 % of those off the multiples of 8, 12 casts" in words
    assert words.endswith("launches wait")
    assert "replayed" not in speed(Profile())
