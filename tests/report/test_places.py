"""Where a finding of the probe stands: at a line that is known, or at none."""

from __future__ import annotations

from dataclasses import replace

from amp_doctor.diagnosis.profile import Layer, Precision, Profile, ScalerEvent, Source, Steps
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.report.text import place


def test_a_finding_about_the_whole_run_has_a_path_and_no_line() -> None:
    scaler = tuple(ScalerEvent(step, 0.5, False) for step in range(1, 21))
    run = Profile(script="train.py", steps=Steps(20, 20, 20), scaler=scaler, precision=Precision(("float16",), True))
    [dead] = findings(run)
    assert (dead.code, place(dead)) == ("AMP609", "train.py")


def test_a_layer_without_a_line_stands_where_the_layer_around_it_is_called() -> None:
    skipped = tuple(ScalerEvent(step, 0.5, True, "block.fc.inner") for step in range(1, 21))
    run = Profile(script="train.py", layers=(Layer("block.fc", source=Source("model.py", 7)),), scaler=skipped)
    assert [place(one) for one in findings(replace(run, precision=Precision(("float16",), True)))] == ["model.py:7:1"]
