"""What a run says about findings in the source: confirmed, cleared, and silent where it went through nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from amp_doctor import catalog
from amp_doctor.diagnosis.agreement import LOOKS, agreement, layers_beside
from amp_doctor.diagnosis.profile import (
    FirstNonfinite,
    Layer,
    Operator,
    OptimizerLog,
    Outcome,
    Precision,
    Profile,
    Replay,
    ScalerEvent,
    Site,
    Source,
    Steps,
)
from amp_doctor.diagnosis.scene import CLEARED, CONFIRMED
from amp_doctor.diagnosis.unjudged import NOT_JUDGED, unjudged
from amp_doctor.finding import Finding, Related, Severity, Span
from amp_doctor.numerics.histogram import ExponentHistogram

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTS = ExponentHistogram.of([1.0, 0.5, 0.25, -2.0])
HALF, FULL = Site("float16", COUNTS), Site("float32", COUNTS)
STEPS = Steps(10, 10, 10, 0)


def lint(code: str, line: int = 7, end: int | None = None, **more: Any) -> Finding:
    span = Span(line, 5, end or line, 20)
    return Finding(code, catalog.codes()[code], Severity.WARNING, "in the source", "train.py", span, **more)


def seen(code: str, layer: str | None = None, line: int = 1) -> Finding:
    return Finding(
        code, catalog.codes()[code], Severity.ERROR, f"{code} seen", "train.py", Span(line, 1, line, 1), layer=layer
    )


def run(*layers: Layer, **more: Any) -> Profile:
    return Profile(**{"steps": STEPS, "ended": "steps", "mode": "observe", "layers": layers, **more})


def verdict(code: str, profile: Profile, *observed: Finding, line: str = "") -> str | None:
    agreed = agreement(lint(code), profile, observed, line)
    return agreed.verdict if agreed else None


def optimizer(dtype: str, state: str = "float32") -> OptimizerLog:
    return OptimizerLog("Adam", 10, 10, 0, (dtype,), (state,), 1e-8)


def layer(name: str, kind: str = "Linear", **sites: Site) -> Layer:
    return Layer(name, kind, None, 1, sites)


def test_every_code_is_the_linters() -> None:
    assert LOOKS.keys() <= catalog.codes().keys()
    assert not any(code.startswith("AMP6") for code in LOOKS)


@pytest.mark.parametrize("code", sorted(set(catalog.codes()) - {c for c in catalog.codes() if c.startswith("AMP6")}))
def test_a_run_that_went_through_nothing_is_silent(code: str) -> None:
    assert agreement(lint(code), Profile(), []) is None
    assert layers_beside(lint(code), Profile(), []) == []
    # So is one in plain float32, which is in none of the states that these findings are about.
    plain = run(
        layer("a", activation=FULL, weight_grad=FULL),
        precision=Precision((), False, ("float32",)),
        optimizers=(optimizer("float32"),),
    )
    assert agreement(lint(code), plain, []) is None


@pytest.mark.parametrize(
    ("code", "met"),
    [
        ("AMP106", "AMP609"),
        ("AMP206", "AMP608"),
        ("AMP210", "AMP615"),
        ("AMP239", "AMP615"),
        ("AMP401", "AMP612"),
        ("AMP403", "AMP611"),
        ("AMP404", "AMP610"),
        ("AMP904", "AMP614"),
    ],
)
def test_a_finding_of_the_run_confirms_its_like(code: str, met: str) -> None:
    agreed = agreement(lint(code), run(layer("bn")), [seen("AMP605"), seen(met, "bn")])
    assert agreed is not None
    assert (agreed.verdict, agreed.codes, agreed.layers) == (CONFIRMED, (met,), ("bn",))
    assert agreed.words == f"{met} seen"
    assert verdict(code, run(), seen("AMP605")) is None


def test_float16_without_a_scaler() -> None:
    half = Precision(("float16",), False, ("float32",))
    profile = run(layer("a", weight_grad=HALF), precision=half)
    assert verdict("AMP209", profile) == CLEARED
    assert verdict("AMP209", profile, seen("AMP601", "a")) == CONFIRMED
    # Nothing is said where no gradient was seen, autocast was not entered, or the loss was scaled after all.
    assert verdict("AMP209", run(layer("a", activation=HALF), precision=half)) is None
    assert verdict("AMP209", replace(profile, precision=Precision(("bfloat16",), False))) is None
    assert verdict("AMP209", replace(profile, precision=Precision(("float16",), True)), seen("AMP601")) is None
    assert verdict("AMP209", replace(profile, steps=Steps(10))) is None


def test_a_scaler_without_autocast() -> None:
    entered = run(precision=Precision(("float16",), True), optimizers=(optimizer("float32"),))
    assert verdict("AMP239", entered) == CLEARED
    # Which of two optimizers it is about nobody knows.
    assert verdict("AMP239", replace(entered, optimizers=entered.optimizers * 2)) is None


def test_half_batch_norm() -> None:
    def norm(dtype: str) -> Layer:
        return replace(layer("bn", "BatchNorm2d", activation=HALF), buffers={"running_mean": dtype})

    cast = Precision((), False, ("float16", "float32"))
    assert verdict("AMP401", run(norm("float32"), precision=cast)) == CLEARED
    assert verdict("AMP401", run(norm("float16"), precision=cast)) is None
    # The cast did not happen in this run.
    assert verdict("AMP401", run(norm("float32"), precision=Precision((), False, ("float32",)))) is None
    assert verdict("AMP401", run(layer("a", activation=HALF), precision=cast)) is None


def test_half_parameters_with_a_scaler() -> None:
    half = Precision((), True, ("float16",))
    refused = run(precision=half, ended="exception", steps=Steps(10, 0, 0, 0))
    assert verdict("AMP402", refused) == CONFIRMED
    taken = run(precision=half, optimizers=(optimizer("float16"),), scaler=(ScalerEvent(1, 2.0, False),))
    assert verdict("AMP402", taken) == CLEARED
    assert verdict("AMP402", replace(taken, precision=Precision((), True, ("float32",)))) is None


def test_eps_and_the_state_it_is_added_to() -> None:
    assert verdict("AMP403", run(optimizers=(optimizer("float16"),))) == CLEARED
    assert verdict("AMP403", run(optimizers=(optimizer("float16", "float16"),))) is None
    assert verdict("AMP403", run(optimizers=(optimizer("float32"),))) is None


def test_updates_of_half_weights() -> None:
    def updated(lost: int, weight: Site = HALF) -> Profile:
        update = Site("float32", ExponentHistogram.of([1.0] * 1000), swallowed={"float16": lost})
        return run(layer("a", weight=weight, update=update), optimizers=(optimizer("float16"),))

    assert verdict("AMP404", updated(0)) == CLEARED
    assert verdict("AMP404", updated(9)) == CLEARED
    assert verdict("AMP404", updated(10)) is None
    assert verdict("AMP404", updated(0, FULL)) is None


def test_half_weights() -> None:
    assert verdict("AMP304", run(precision=Precision(("float16",), True, ("bfloat16",)))) == CONFIRMED
    assert verdict("AMP105", run(precision=Precision((), False, ("float32",)))) is None


def test_a_layer_that_is_meant_to_stay_in_float32() -> None:
    line = "self.head = nn.Linear(4, 2).float()"
    others = layer("body", activation=HALF)
    half = agreement(lint("AMP316"), run(others, layer("net.head", activation=HALF)), [], line)
    assert half is not None
    assert (half.verdict, half.words, half.layers) == (CONFIRMED, "net.head gave float16", ("net.head",))
    assert verdict("AMP316", run(others, layer("net.head", activation=FULL)), line=line) == CLEARED
    # Autocast was not at work, the layer did not run, or nobody knows which layer it is.
    assert verdict("AMP316", run(layer("net.head", activation=FULL)), line=line) is None
    assert verdict("AMP316", run(others, layer("net.header", activation=FULL)), line=line) is None
    assert verdict("AMP316", run(others, layer("net.head", activation=HALF))) is None
    assert verdict("AMP316", run(others, layer("net.head", activation=HALF)), line="if head == x.float():") is None


def test_what_calibration_saw_is_not_the_script_as_written() -> None:
    line = "self.head = nn.Linear(4, 2).float()"
    widened = Precision(("float16",), True, ("float32",), calibrated=True)
    before = {"activation": FULL}
    body = Layer("body", "Linear", None, 1, before, {"activation": HALF})
    seen_half = Layer("head", "Linear", None, 2, before, {"activation": HALF})
    assert verdict("AMP316", run(body, seen_half, precision=widened), line=line) == CONFIRMED
    assert verdict("AMP316", run(body, Layer("head", "Linear", None, 2, before), precision=widened), line=line) is None


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("AMP305", "banned"),
        ("AMP308", "unsupported"),
        ("AMP308", "mixed"),
        ("AMP501", "overflow"),
        ("AMP501", "mask"),
        ("AMP502", "underflow"),
        ("AMP503", "overflow"),
        ("AMP504", "precision"),
        ("AMP506", "overflow"),
        ("AMP507", "precision"),
    ],
)
def test_an_operator_on_the_line_confirms(code: str, trouble: str) -> None:
    def with_operator(**more: Any) -> Profile:
        return run(operators=(Operator(**{"operator": "exp", "layer": "a", "trouble": trouble, **more}),))

    assert verdict(code, with_operator(source=Source("train.py", 7))) == CONFIRMED
    assert verdict(code, with_operator(source=Source("train.py", 8))) is None
    assert verdict(code, with_operator(source=Source("other.py", 7))) is None
    assert verdict(code, with_operator()) is None
    assert verdict(code, with_operator(source=Source("train.py", 7), precision="O3/float16")) is None
    assert verdict(code, with_operator(source=Source("train.py", 7), trouble="something else")) is None
    several = agreement(lint(code, 6, 9), with_operator(source=Source("train.py", 8)), [])
    assert several is not None


def test_a_nan_that_is_born_on_the_line_confirms() -> None:
    born = FirstNonfinite(3, "forward", "a", "nan", "div", Source("train.py", 7))
    agreed = agreement(lint("AMP502"), run(first_nonfinite=born), [seen("AMP607", "a", 7)])
    assert agreed is not None
    assert agreed.words == "the first NaN of the run came from div on this line"
    assert agreed.codes == ("AMP607",)
    # A layer that is called there is no operator of that line.
    assert verdict("AMP502", run(first_nonfinite=replace(born, operator=None)), seen("AMP605", "a", 7)) is None


def test_notebooks_are_left_alone() -> None:
    assert agreement(lint("AMP401", cell=2), run(), [seen("AMP612")]) is None


def names(finding: Finding, profile: Profile, observed: Sequence[Finding] = (), line: str = "") -> list[str]:
    return layers_beside(finding, profile, observed, line)


def test_layers_stand_beside_the_lines_they_are_called_on() -> None:
    here, there = (replace(layer(n), source=Source("train.py", at)) for n, at in (("here", 7), ("there", 9)))
    profile = run(here, there, layer("nowhere"))
    assert names(lint("AMP502"), profile) == ["here"]
    assert names(lint("AMP502", 6, 10), profile) == ["here", "there"]
    trail = (Related("train.py", Span(9, 1, 9, 2), "from here"),)
    assert names(lint("AMP201", 99, related=trail), profile) == ["there"]
    assert names(lint("AMP201", 99), profile, line="self.nowhere: nn.Module = nn.Linear(2, 2)") == ["nowhere"]
    assert names(lint("AMP401", 99), profile, [seen("AMP612", "there")]) == ["there"]


def open_words(code: str, profile: Profile) -> str:
    """Why the run leaves the finding open."""
    left = unjudged(lint(code), profile)
    assert left is not None
    assert left.verdict == NOT_JUDGED
    return left.words


def test_what_a_run_cannot_judge_says_what_it_lacked() -> None:
    plain = run(precision=Precision((), False, ("float32",)))
    assert open_words("AMP401", plain) == "no weights in half were trained in this run"
    assert open_words("AMP209", plain) == "the run did not enter autocast to float16"
    assert open_words("AMP206", plain) == "no GradScaler scaled in this run"
    scaled = run(precision=Precision(("float16",), True, ("float32",)))
    assert open_words("AMP209", scaled) == "the losses of this run were scaled"
    assert open_words("AMP206", scaled) == "what it warns of was not seen in 10 steps, which does not rule it out"


def test_of_operators_it_says_whether_a_step_was_replayed() -> None:
    assert open_words("AMP502", run()) == "no step was recorded, so its operators were not looked at"
    left = open_words("AMP503", run(replay=Replay(recorded=False, reason="the model is on a GPU")))
    assert left.endswith("not looked at: the model is on a GPU")
    assert open_words("AMP507", run(replay=Replay())) == "the one step that was replayed did not come by this line"
    left = open_words("AMP507", run(replay=Replay(lines=(Source("train.py", 7),))))
    assert left.startswith("in the one step that was replayed nothing went wrong on this line")


def test_what_dtypes_decide_a_replayed_step_clears() -> None:
    half = Precision(("float16",), True, ("float32",))

    def ran(replay: Replay, *operators: Operator, precision: Precision = half) -> Profile:
        return run(replay=replay, operators=operators, precision=precision)

    replay = Replay(outcomes=(Outcome("O1/float16"),), lines=(Source("train.py", 7),))
    assert verdict("AMP501", ran(replay)) == verdict("AMP502", ran(replay)) == CLEARED
    # What numbers decide is left open, and so is a line that the step did not come by, or one among too many to tell.
    assert verdict("AMP503", ran(replay)) is None
    assert verdict("AMP502", ran(replace(replay, lines=(Source("train.py", 8),)))) is None
    assert verdict("AMP502", ran(replace(replay, outcomes=()))) is None
    many = tuple(Operator("mul", f"l{number}", None, "O1/float16", "overflow") for number in range(20))
    assert verdict("AMP502", ran(replay, *many)) is None
    eps = Operator("add", "a", Source("train.py", 7), "O1/float16", "underflow")
    assert verdict("AMP502", ran(replay, eps)) == CONFIRMED
    # In calibrated steps and in float32 it cannot be told which tensor a cast that changes nothing was read through.
    assert verdict("AMP502", ran(replay, precision=replace(half, calibrated=True))) is None
    assert verdict("AMP502", ran(replay, precision=Precision((), False, ("float32",)))) is None


def test_what_no_run_can_judge_or_was_not_run_is_left_alone() -> None:
    assert unjudged(lint("AMP101"), run()) is None
    assert unjudged(lint("AMP502"), Profile()) is None
    assert unjudged(lint("AMP502", cell=2), run()) is None


def test_the_findings_of_the_run_on_the_line_are_named() -> None:
    profile = run(operators=(Operator("add", "a", Source("train.py", 7), "O1/float16", "underflow"),))
    agreed = agreement(
        lint("AMP502"), profile, [seen("AMP619", "a", 7), seen("AMP605", "a", 9), seen("AMP601", "a", 7)]
    )
    assert agreed is not None
    assert agreed.codes == ("AMP619",)


def test_nan_clears_nothing() -> None:
    """What is rounded away, or lost, cannot be told from numbers that are none."""
    update = Site("float32", ExponentHistogram.of([1.0] * 1000), swallowed={"float16": 0})
    profile = run(layer("0", weight=HALF, update=update), optimizers=(optimizer("float16"),))
    assert verdict("AMP404", profile) == CLEARED
    broken = replace(profile, first_nonfinite=FirstNonfinite(1, "optimizer", "0", "nan"))
    assert verdict("AMP404", broken) is None
    found = unjudged(lint("AMP404"), replace(broken, precision=Precision(weights=("float16",))))
    assert found is not None
    assert found.words == "the run met NaN in step 1, after which its numbers clear nothing"
    gradients = run(layer("0", weight_grad=FULL), precision=Precision(("float16",)))
    assert verdict("AMP209", gradients) == CLEARED
    assert verdict("AMP209", replace(gradients, first_nonfinite=broken.first_nonfinite)) is None


def ended(error: str, line: int = 7) -> Profile:
    """A run that ended in an error; the note has the path as Python tells it."""
    return run(
        ended="exception",
        notes=("a note", f"the script raised {error} (/src/train.py:{line})"),
        places={"raised": Source("train.py", line)},
        precision=Precision(("float16",), True),
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AMP206", "RuntimeError: step() has already been called since the last update()."),
        ("AMP234", "RuntimeError: step() has already been called since the last update()."),
        ("AMP206", "RuntimeError: unscale_() has already been called on this optimizer since the last update()."),
        ("AMP217", "RuntimeError: unscale_() has already been called on this optimizer since the last update()."),
        ("AMP218", "RuntimeError: unscale_() is being called after step()."),
        ("AMP241", "AssertionError: No inf checks were recorded for this optimizer."),
        ("AMP208", "AssertionError: No inf checks were recorded prior to update."),
        ("AMP202", "AssertionError: Attempted step but _scale is None.  This may indicate your script did not use"),
        ("AMP402", "ValueError: Attempting to unscale FP16 gradients."),
        ("AMP222", "RuntimeError: Closure use is not currently supported if GradScaler is enabled."),
    ],
)
def test_an_error_of_the_scaler_confirms_what_foretells_it(code: str, error: str) -> None:
    agreed = agreement(lint(code), ended(error), [])
    assert agreed is not None
    assert (agreed.verdict, agreed.words) == (CONFIRMED, f"the run ended on train.py:7 with {error.rstrip('.')}")
    assert agreement(lint("AMP219"), ended(error), []) is None
    assert verdict(code, replace(ended(error), ended="steps")) is None
    # Raised elsewhere it is another mistake, but for the lines that the finding leads to.
    assert agreement(lint(code, 8), ended(error), []) is None
    trail = (Related("train.py", Span(7, 1, 7, 2), "stepped here"),)
    led = agreement(lint(code, 8, related=trail), ended(error), [])
    assert led is not None
    assert led.verdict == CONFIRMED


def test_gradients_that_were_clipped_with_the_scale_in_them() -> None:
    clipped = run(
        precision=Precision(("float16",), True),
        places={"clipped": Source("train.py", 7)},
        scaler=(ScalerEvent(5, 65536.0, False),),
    )
    agreed = agreement(lint("AMP201"), clipped, [])
    assert agreed is not None
    assert agreed.verdict == CONFIRMED
    assert agreed.words == "gradients were clipped on this line while they were multiplied by the loss scale, 65536"
    assert agreement(lint("AMP201", 8), clipped, []) is None
    assert open_words("AMP201", replace(clipped, places={})).startswith("what it warns of was not seen in 10 steps")
    assert open_words("AMP201", run()) == "no GradScaler scaled in this run"


def test_a_constant_that_ended_the_run_confirms() -> None:
    fill = Operator("masked_fill_", "", Source("train.py", 7), "", "unsupported", "float16", 1e9)
    agreed = agreement(lint("AMP501"), run(operators=(fill,), ended="exception"), [seen("AMP617", line=7)])
    assert agreed is not None
    assert (agreed.verdict, agreed.codes) == (CONFIRMED, ("AMP617",))
    assert agreed.words == "masked_fill_ on this line: unsupported, and the run ended with it"
