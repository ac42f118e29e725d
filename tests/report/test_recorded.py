"""The reports on recorded profiles: real runs of the planted illnesses, at every width."""

from __future__ import annotations

import json

import pytest

from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.serial import from_values, to_values
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.report.text import cells
from amp_doctor.report.to_probe_json import to_probe_json
from amp_doctor.report.to_profile_text import to_profile_text
from tests.report.record import PROFILES, RUNS

NAMES = sorted(RUNS)


def test_every_run_is_recorded_and_nothing_else() -> None:
    assert sorted(path.stem for path in PROFILES.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_profile_is_read_whole_and_names_no_machine(name: str) -> None:
    text = (PROFILES / f"{name}.json").read_text("utf-8")
    values = json.loads(text)
    read = json.loads(json.dumps(to_values(from_values(values, name))))
    assert read == values
    assert not any(place in text for place in ("/home/", "/tmp/", "/work/", "/root/"))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", NAMES)
def test_its_report_tells_every_finding_and_keeps_to_the_width(name: str, width: int) -> None:
    profile = from_values(json.loads((PROFILES / f"{name}.json").read_text("utf-8")), name)
    found, advice = findings(profile), recommend(profile)
    text = to_profile_text(profile, found, advice, width=width, color=False)
    assert all(finding.code in text and (finding.layer or "") in text for finding in found)
    assert all(line in text for line in advice.snippet.splitlines())
    assert "\n\n\n" not in text
    # Code is not broken, and neither are places.
    pasted = {f"  {line}" for line in advice.snippet.splitlines()}
    for line in text.splitlines():
        assert cells(line) <= width or line in pasted or line.startswith("fixtures/"), line


@pytest.mark.parametrize("name", NAMES)
def test_its_json_holds_the_whole_profile(name: str) -> None:
    values = json.loads((PROFILES / f"{name}.json").read_text("utf-8"))
    profile = from_values(values, name)
    text = to_probe_json(profile, findings(profile), recommend(profile))
    document = json.loads(text, parse_constant=pytest.fail)
    assert document["profile"] == values
    assert [one["layer"] for one in document["findings"]] == [one.layer for one in findings(profile)]
    assert document["recommendation"]["dtype"] == recommend(profile).dtype


def test_a_run_without_steps_begins_with_that() -> None:
    profile = from_values(json.loads((PROFILES / "no-step.json").read_text("utf-8")), "no-step")
    text = to_profile_text(profile, findings(profile), recommend(profile), width=80, color=False)
    assert text.startswith("No optimizer step was seen: what follows rests on no training step.\n")


@pytest.mark.parametrize("name", ["healthy-cnn", "healthy-transformer"])
def test_healthy_models_are_told_to_be_healthy(name: str) -> None:
    profile = from_values(json.loads((PROFILES / f"{name}.json").read_text("utf-8")), name)
    text = to_profile_text(profile, findings(profile), recommend(profile), width=80, color=False)
    assert text.endswith("\nNothing was found wrong in 20 steps.\n")
    assert "\nNo layer stands out; those nearest to the limits\n" in text
