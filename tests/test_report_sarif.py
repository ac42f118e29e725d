"""SARIF 2.1.0, against the official schema, and what code scanning relies on."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from jsonschema import Draft4Validator, ValidationError

from amp_doctor import catalog
from amp_doctor.finding import Span
from amp_doctor.lint.result import LintReport
from amp_doctor.report.to_sarif import to_sarif
from tests.conftest import ROOT
from tests.reports import CLIP, REPORT, SOURCES, TRAIN

PAGES = {code: catalog.page(code) for code in catalog.codes()}


@pytest.fixture(scope="module")
def schema() -> Draft4Validator:
    text = (ROOT / "tests" / "data" / "sarif-schema-2.1.0.json").read_text("utf-8")
    return Draft4Validator(json.loads(text))


def run(report: LintReport, sources: dict[str, str] = SOURCES) -> dict[str, Any]:
    document = json.loads(to_sarif(report, sources, PAGES))
    return document["runs"][0]


@pytest.mark.parametrize("report", [REPORT, LintReport(files=2)])
@pytest.mark.parametrize("pages", [PAGES, {}])
def test_the_log_is_valid(schema: Draft4Validator, report: LintReport, pages: dict[str, catalog.Page]) -> None:
    schema.validate(json.loads(to_sarif(report, SOURCES, pages)))


def test_the_schema_can_refuse(schema: Draft4Validator) -> None:
    document = json.loads(to_sarif(REPORT, SOURCES, PAGES))
    document["runs"][0]["results"][0]["level"] = "terrible"
    with pytest.raises(ValidationError):
        schema.validate(document)


def test_every_rule_has_what_code_scanning_needs() -> None:
    rules = run(REPORT)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted({*PAGES, *(f.code for f in REPORT.findings)})
    for rule in rules:
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
        if rule["id"] in PAGES:
            assert rule["help"]["markdown"].startswith(f"# {rule['id']} · ")
            assert rule["properties"]["precision"] in {"very-high", "high", "medium", "low"}
            assert rule["properties"]["problem.severity"] in {"error", "warning", "recommendation"}


def test_results_point_at_their_rules() -> None:
    log = run(REPORT)
    for result in log["results"]:
        assert log["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_the_trail_is_a_code_flow_that_ends_at_the_fault() -> None:
    clip = run(REPORT)["results"][3]
    flow = [step["location"] for step in clip["codeFlows"][0]["threadFlows"][0]["locations"]]
    assert [step["physicalLocation"]["region"]["startLine"] for step in flow] == [8, 9]
    assert [step["message"]["text"] for step in flow] == [CLIP.related[0].message, CLIP.message]
    assert clip["relatedLocations"][0]["message"]["text"] == CLIP.related[0].message


def test_the_fix_is_a_replacement() -> None:
    [change] = run(REPORT)["results"][3]["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 9, "startColumn": 1, "endLine": 9, "endColumn": 1},
            "insertedContent": {"text": "    scaler.unscale_(optimizer)\n"},
        }
    ]


def test_suppressions_are_told() -> None:
    assert [result["suppressions"] for result in run(REPORT)["results"]] == [[], [], [{"kind": "inSource"}], []]


def test_paths_become_uris() -> None:
    absolute = dataclasses.replace(CLIP, path="/home/größe/a b.py")
    uris = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in run(LintReport((*REPORT.findings, absolute), files=1))["results"]
    ]
    assert uris[1] == "src/my%20layers.py"
    assert uris[4] == "file:///home/gr%C3%B6%C3%9Fe/a%20b.py"


def fingerprint(finding: Any, source: str) -> str:
    [result] = run(LintReport((finding,), files=1), {"train.py": source})["results"]
    return result["partialFingerprints"]["primaryLocationLineHash"]


def test_fingerprints_survive_moved_and_indented_lines() -> None:
    before = fingerprint(CLIP, TRAIN)
    moved = dataclasses.replace(CLIP, span=Span(11, 9, 11, 64))
    assert fingerprint(moved, "# new\n# new\n" + TRAIN.replace("    torch.nn", "        torch.nn")) == before
    assert fingerprint(CLIP, TRAIN.replace("1.0", "2.0")) != before
    assert fingerprint(dataclasses.replace(CLIP, code="AMP202"), TRAIN) != before


def test_fingerprints_of_equal_lines_differ() -> None:
    twice = run(LintReport((CLIP, CLIP), files=1))["results"]
    assert len({result["partialFingerprints"]["primaryLocationLineHash"] for result in twice}) == 2


def test_unreadable_files_are_notifications() -> None:
    invocation = run(REPORT)["invocations"][0]
    assert invocation["executionSuccessful"] is False
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "no permission to read it"
