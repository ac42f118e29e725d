"""A proof that was saved: `report` tells it again."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.recommendation import Run, Verified, from_values, to_values
from amp_doctor.diagnosis.serial import to_values as profile_values
from amp_doctor.probe.saving import ProfileFile
from amp_doctor.report.to_probe_json import to_probe_json
from tests.invoke import amp_doctor
from tests.report.samples import ADVICE, SICK

if TYPE_CHECKING:
    from pathlib import Path

PROOF = Verified("refuted", 20, (Run("float32", (2.0, inf), 1, 0.5, 1.0, 2),), "the numbers", "bfloat16")
TRIED = replace(ADVICE, dtype="bfloat16", verified=PROOF)


def test_a_recommendation_survives_json() -> None:
    for one in (ADVICE, TRIED):
        assert from_values(json.loads(json.dumps(to_values(one)))) == one


@pytest.mark.parametrize("saved", ["a report", "a profile"])
def test_report_tells_what_the_proof_has_shown(tmp_path: Path, saved: str) -> None:
    file = tmp_path / "tried.json"
    if saved == "a report":
        file.write_text(to_probe_json(SICK, (), TRIED))
    else:
        ProfileFile(str(file)).prove(SICK, TRIED)
    done = amp_doctor("report", "--fail-on", "never", str(file))
    assert "Verdict: bfloat16" in done.out
    assert "Refuted by a run of 20 steps, and revised to bfloat16." in done.out
    again = amp_doctor("report", "--fail-on", "never", "--format", "json", str(file))
    assert json.loads(again.out)["recommendation"] == json.loads(file.read_text())["recommendation"]
    page = amp_doctor("report", "--fail-on", "never", "--format", "html", str(file)).out
    assert "Refuted by a run of 20 steps, and revised to bfloat16." in page
    assert 'id="proof"' in page


def test_a_profile_without_a_proof_is_read_as_before(tmp_path: Path) -> None:
    file = tmp_path / "plain.json"
    ProfileFile(str(file)).write(SICK)
    assert json.loads(file.read_text()) == json.loads(json.dumps(profile_values(SICK)))
    done = amp_doctor("report", "--fail-on", "never", "--format", "json", str(file))
    assert json.loads(done.out)["recommendation"]["verified"] is None


def test_a_proof_is_none_of_a_sum(tmp_path: Path) -> None:
    proven, other = tmp_path / "proven.json", tmp_path / "other.json"
    ProfileFile(str(proven)).prove(SICK, TRIED)
    ProfileFile(str(other)).write(SICK)
    done = amp_doctor("report", "--fail-on", "never", "--format", "json", str(proven), str(other))
    told = json.loads(done.out)
    assert told["recommendation"]["verified"] is None
    assert f"what was verified of {proven} alone is left out: it is not of the sum" in told["profile"]["notes"]
    assert not any(str(other) in note for note in told["profile"]["notes"])


@pytest.mark.parametrize("broken", [{"verified": {"verdict": "verified"}}, {"verified": 3}])
def test_a_broken_proof_is_told(tmp_path: Path, broken: dict[str, object]) -> None:
    document = json.loads(to_probe_json(SICK, (), TRIED))
    document["recommendation"] |= broken
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(document))
    done = amp_doctor("report", str(file))
    assert done.status == 2
    assert "a broken recommendation" in done.err
