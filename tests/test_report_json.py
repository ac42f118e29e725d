"""The JSON contract of DESIGN section 6."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from amp_doctor.finding import Applicability, Edit, Fix
from amp_doctor.lint.result import LintReport
from amp_doctor.report.edits import regions
from amp_doctor.report.to_json import to_json
from tests.reports import CLIP, CONSTANT, REPORT, SOURCES


def test_the_whole_contract() -> None:
    document = json.loads(to_json(REPORT, SOURCES))
    assert list(document) == ["schema", "tool", "files", "findings", "errors"]
    assert document["schema"] == 1
    assert document["tool"]["name"] == "amp-doctor"
    assert document["files"] == 14
    assert document["errors"] == [{"path": "broken.py", "message": "no permission to read it"}]
    assert [f["code"] for f in document["findings"]] == ["AMP302", "AMP501", "AMP401", "AMP201"]
    assert [f["suppressed"] for f in document["findings"]] == [False, False, True, False]
    assert document["findings"][3] == {
        "code": "AMP201",
        "name": "clip-before-unscale",
        "severity": "error",
        "confidence": "high",
        "message": "gradients are clipped while still multiplied by the loss scale",
        "path": "train.py",
        "line": 9,
        "column": 5,
        "end_line": 9,
        "end_column": 60,
        "cell": None,
        "related": [
            {
                "path": "train.py",
                "line": 8,
                "column": 5,
                "message": "the gradients carry the loss scale from here on",
                "cell": None,
            }
        ],
        "fix": {
            "applicability": "unsafe",
            "message": "insert scaler.unscale_(optimizer) before the clipping",
            "edits": [
                {
                    "start_line": 9,
                    "start_column": 1,
                    "end_line": 9,
                    "end_column": 1,
                    "text": "    scaler.unscale_(optimizer)\n",
                }
            ],
        },
        "suppressed": False,
        "url": "https://github.com/amp-doctor/amp-doctor/blob/main/rules/AMP201-clip-before-unscale.md",
    }


def test_a_run_without_findings() -> None:
    document = json.loads(to_json(LintReport(files=3), {}))
    assert (document["findings"], document["errors"], document["files"]) == ([], [], 3)


def test_edits_are_counted_in_characters_not_bytes() -> None:
    code = "größe = '数'; x = 1\n"
    start = code.encode().index(b"1")
    fix = Fix(Applicability.SAFE, "two", (Edit(start, start + 1, "2"),))
    [region] = regions(dataclasses.replace(CONSTANT, fix=fix), {CONSTANT.path: code})
    assert (region.start_line, region.start_column, region.end_column) == (1, code.index("1") + 1, code.index("1") + 2)


def test_a_fix_whose_text_is_gone_has_no_edits() -> None:
    document = json.loads(to_json(LintReport((CLIP,), files=1), {}))
    assert document["findings"][0]["fix"]["edits"] == []


@given(st.text(alphabet="aé数\r\n\t", max_size=30), st.data())
def test_regions_point_at_the_same_text_as_the_bytes(code: str, data: st.DataObject) -> None:
    offsets = [len(code[:index].encode()) for index in range(len(code) + 1)]
    start = data.draw(st.sampled_from(offsets))
    end = data.draw(st.sampled_from([offset for offset in offsets if offset >= start]))
    fix = Fix(Applicability.SAFE, "", (Edit(start, end, ""),))
    [region] = regions(dataclasses.replace(CLIP, fix=fix), {CLIP.path: code})
    firsts = [0]
    for index, character in enumerate(code):
        position = index + 1
        if character == "\n" or (character == "\r" and code[position : position + 1] != "\n"):
            firsts.append(position)
    begin = firsts[region.start_line - 1] + region.start_column - 1
    stop = firsts[region.end_line - 1] + region.end_column - 1
    assert code[begin:stop].encode() == code.encode()[start:end]
