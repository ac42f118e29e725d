"""Where a finding of the probe stands: at a line that is known, or at none."""

from __future__ import annotations

from dataclasses import replace

from amp_doctor.diagnosis.profile import Layer, Operator, Precision, Profile, ScalerEvent, Site, Source, Steps
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.report.text import place
from amp_doctor.report.to_profile_text import to_profile_text


def test_a_finding_about_the_whole_run_has_a_path_and_no_line() -> None:
    scaler = tuple(ScalerEvent(step, 0.5, False) for step in range(1, 21))
    run = Profile(script="train.py", steps=Steps(20, 20, 20), scaler=scaler, precision=Precision(("float16",), True))
    [dead] = findings(run)
    assert (dead.code, place(dead)) == ("AMP609", "train.py")


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
