"""What a replayed step says survives the file, and is told among the estimates."""

from __future__ import annotations

import json
from dataclasses import replace

from amp_doctor.diagnosis.hardware import speed
from amp_doctor.diagnosis.profile import Profile, Replay
from amp_doctor.diagnosis.serial import from_values, to_values

REPLAY = Replay(
    1e-4, float("inf"), 12, 4_000, 0.9, 0.5, {"T4": (0.8, 2.5), "A100": (0.5, 3.0)}, "launches wait", ("attn: matmul",)
)


def test_to_a_file_and_back() -> None:
    profile = replace(Profile(), replay=REPLAY)
    assert from_values(json.loads(json.dumps(to_values(profile))), "run.json").replay == REPLAY
    assert from_values(json.loads(json.dumps(to_values(Profile()))), "run.json").replay is None


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
