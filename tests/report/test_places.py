"""Where a finding of the probe stands: at a line that is known, or at none."""

from __future__ import annotations

import json
from dataclasses import replace

from amp_doctor.diagnosis.profile import (
    BACKWARD,
    STEP,
    Layer,
    Operator,
    Precision,
    Profile,
    ScalerEvent,
    Site,
    Source,
    Steps,
)
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.serial import from_values, to_values
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.lint.result import LintReport
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.report.finding_json import finding_values
from amp_doctor.report.text import place
from amp_doctor.report.to_github import to_github
from amp_doctor.report.to_profile_text import to_profile_text
from amp_doctor.report.to_sarif import to_sarif


def test_a_finding_about_the_whole_run_has_a_path_and_no_line() -> None:
    scaler = tuple(ScalerEvent(step, 0.5, False) for step in range(1, 21))
    run = Profile(script="train.py", steps=Steps(20, 20, 20), scaler=scaler, precision=Precision(("float16",), True))
    [dead] = findings(run)
    assert (dead.code, place(dead)) == ("AMP609", "train.py")
    report = LintReport((dead,))
    [result] = json.loads(to_sarif(report, {"train.py": "import torch\n"}, {}))["runs"][0]["results"]
    assert result["locations"] == [
        {"physicalLocation": {"artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"}}}
    ]
    assert to_github(report).startswith("::error file=train.py,title=AMP609 dead-loss-scale::train.py: AMP609")
    values = finding_values(dead, {})
    assert [values[key] for key in ("path", "line", "column", "end_line", "end_column")] == ["train.py", *4 * [None]]


def test_a_finding_about_the_whole_run_stands_where_the_user_steps_or_starts_the_backward_pass() -> None:
    places = {BACKWARD: Source("train.py", 12), STEP: Source("train.py", 14)}
    scaler = tuple(ScalerEvent(step, 0.5, False) for step in range(1, 21))
    run = Profile(script="run.py", scaler=scaler, precision=Precision(("float16",), True), places=places)
    assert [(one.code, place(one)) for one in findings(run)] == [("AMP609", "train.py:14:1")]
    broken = Profile(script="run.py", loss=(1.0, float("nan")), places=places)
    assert [(one.code, place(one)) for one in findings(broken)] == [("AMP607", "train.py:12:1")]
    assert from_values(to_values(run), "").places == places
    other = replace(run, places={STEP: Source("train.py", 9), BACKWARD: Source("train.py", 12)})
    assert (run + other).places == (other + run).places == {**places, STEP: Source("train.py", 9)}


def test_a_layer_without_a_line_stands_where_the_layer_around_it_is_called() -> None:
    skipped = tuple(ScalerEvent(step, 0.5, True, "block.fc.inner") for step in range(1, 21))
    run = Profile(script="train.py", layers=(Layer("block.fc", source=Source("model.py", 7)),), scaler=skipped)
    assert [place(one) for one in findings(replace(run, precision=Precision(("float16",), True)))] == ["model.py:7:1"]


def test_a_line_that_would_raise_is_told_in_the_verdict_as_one_to_change() -> None:
    fill = Operator("full_like", "pool", Source("model.py", 8), "O1/float16", "unsupported", "float16", 1e9)
    counts = ExponentHistogram({-5: 500, -8: 500}, amax=2.0**-5, amin=2.0**-8)
    layers = (Layer("0", "Linear", sites={"activation_grad": Site("float32", counts)}),)
    run = Profile(script="train.py", steps=Steps(20, 20, 20), ended="steps", layers=layers, operators=(fill,))
    told = to_profile_text(run, findings(run), recommend(run), width=100, color=False)
    assert "change:     full_like at model.py:8, in pool, which raises an error once autocast is on" in told
    assert "in float32:" not in told
