"""Findings about operators stand at their lines, once for each, and not beside another that says the same."""

from __future__ import annotations

from dataclasses import replace

from amp_doctor.diagnosis.profile import FirstNonfinite, Operator, Outcome, Precision, Profile, Replay, Source
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.symptoms import findings
from tests.diagnosis.test_recommend import H200, HEALTHY, T4

LINE = Source("model.py", 12)
EPS = Operator("add", "norm", LINE, "O1/float16", "underflow", "float16", 3.0)
OFF = Operator("sub", "norm", LINE, "O1/float16", "precision", "float16", 0.3, error=0.8)
WRONG = Replay(outcomes=(Outcome("O1/float16", 0.6, 0.9),))


def codes(*operators: Operator, replay: Replay | None = None, **more: object) -> list[tuple[str, str | None, int]]:
    profile = replace(Profile(script="train.py", operators=operators, replay=replay), **more)  # type: ignore[arg-type]
    return [(one.code, one.layer, one.span.line) for one in findings(profile)]


def test_a_finding_stands_at_the_line_of_its_operator() -> None:
    [found] = findings(replace(Profile(script="train.py"), operators=(EPS,)))
    assert (found.path, found.span.line, found.layer) == ("model.py", 12, "norm")
    assert codes(replace(EPS, layer="", source=None)) == [("AMP619", None, 1)]


def test_a_line_that_several_layers_call_is_told_once() -> None:
    several = tuple(replace(EPS, layer=f"blocks.{number}") for number in range(12))
    [found] = findings(replace(Profile(), operators=several))
    assert found.message.endswith("(and in 11 more layers)")


def test_what_another_finding_tells_of_the_line_is_not_told_again() -> None:
    assert [code for code, *_ in codes(OFF, replay=WRONG)] == ["AMP618"]
    overflow = replace(OFF, operator="mul", trouble="overflow", amax=1e6)
    assert [code for code, *_ in codes(OFF, overflow, replay=WRONG)] == ["AMP605"]
    first = FirstNonfinite(3, "forward", "norm", "nan", "div", LINE)
    half = Precision(("float16",), True, ("float32",))
    assert [code for code, *_ in codes(OFF, replay=WRONG, first_nonfinite=first, precision=half)] == ["AMP607"]


def test_the_backward_of_an_operator_is_its_own_matter() -> None:
    """A gradient beyond the range is no forward overflow; it is told when its exemption helped."""
    backward = replace(OFF, trouble="overflow", amax=1e6, phase="backward")
    assert codes(backward, replay=WRONG) == []
    [found] = findings(replace(Profile(), operators=(backward,), replay=Replay(keep=("norm: sub",))))
    assert "the gradients that its backward computes reach 1,000,000; FP16 ends at 65504" in found.message


def test_a_script_in_bfloat16_hears_of_bfloat16() -> None:
    brain = Precision(("bfloat16",), False, ("float32",))
    assert codes(EPS, precision=brain) == []
    [found] = findings(replace(Profile(), operators=(replace(EPS, precision="O1/bfloat16"),), precision=brain))
    assert "zero in BF16" in found.message
    assert codes(replace(EPS, precision="O1/bfloat16")) == []


def test_a_sum_that_overflows_is_an_overflow_and_one_that_is_stuck_is_not() -> None:
    total = replace(OFF, operator="index_add", trouble="accumulation", amax=2100.0, error=0.0)
    assert [code for code, *_ in codes(total)] == ["AMP618"]
    assert [code for code, *_ in codes(replace(total, amax=7e4))] == ["AMP605"]


def test_only_what_adds_a_constant_can_be_a_guard() -> None:
    assert codes(replace(EPS, operator="sub", lost=0.5)) == []
    assert [code for code, *_ in codes(replace(EPS, operator="clamp_min"))] == ["AMP619"]


def test_a_guard_that_is_zero_explains_the_overflow_on_its_line() -> None:
    divided = replace(EPS, operator="div", trouble="overflow", amax=2e7)
    assert [code for code, *_ in codes(EPS, divided)] == ["AMP605", "AMP619"]


def test_the_verdict_names_the_guards_that_are_zero_in_half() -> None:
    advised = recommend(replace(HEALTHY, operators=(EPS, replace(EPS, layer="other")), device=T4))
    assert (advised.dtype, advised.reasons[0].partition(", once ")[2]) == (
        "float16",
        "the eps at model.py:12 is changed",
    )
    both = recommend(replace(HEALTHY, operators=(EPS, replace(EPS, source=Source("a.py", 3))), device=T4))
    assert both.reasons[0].endswith("once the eps at model.py:12 and the eps at a.py:3 are changed")
    assert "once" not in recommend(replace(HEALTHY, operators=(EPS,), device=H200)).reasons[0]


def test_where_an_exemption_helped_what_follows_from_it_is_not_told() -> None:
    cause = replace(OFF, operator="mul", trouble="underflow", lost=0.99, source=Source("model.py", 11))
    found = codes(cause, OFF, replace(cause, phase="backward"), replay=replace(WRONG, keep=("norm: mul",)))
    assert found == [("AMP618", "norm", 11)]


def test_the_first_infinity_stands_at_the_operator_that_gives_it_in_what_the_script_does() -> None:
    line = Source("model.py", 7)
    div = Operator("div", "norm", line, "O1/float16", "overflow", "float16", 5.0)
    half, first = Precision(("float16",), True, ("float32",)), FirstNonfinite(5, "forward", "norm", "nan", None, LINE)

    def met(*operators: Operator, precision: Precision = half, first: FirstNonfinite = first) -> tuple[int, str]:
        run = Profile(operators=operators, precision=precision, first_nonfinite=first)
        return next((one.span.line, one.message) for one in findings(run) if one.code == "AMP607")

    assert met(div) == (7, "the first NaN appears in step 5, in the result of div in this layer")
    # In another layer, in another precision, or lost and not infinite, it is another matter.
    for other in ("layer", "precision", "trouble"):
        assert met(replace(div, **{other: "precision"}))[0] == 12  # type: ignore[arg-type]
    assert met(div, precision=Precision())[0] == 12
    # A loss in no layer: what autocast has left half there, all weights in half show.
    loss = FirstNonfinite(5, "loss", "loss", "inf", None, LINE)
    outside = replace(div, operator="exp", layer="", precision="O2/float16")
    assert met(outside, first=loss) == (
        7,
        "the first infinity appears in step 5, in the loss; in half exp overflows before it",
    )
    assert met(replace(outside, layer="norm"), first=loss)[0] == 12


def test_a_refusal_weighs_as_much_as_it_has_done() -> None:
    banned = Operator("binary_cross_entropy", "BCELoss", LINE, "O1/float16", "banned", "float16", 0.7)
    half = Precision(("float16",), True, ("float32",))

    def severity(one: Operator, precision: Precision) -> list[str]:
        return [found.severity.value for found in findings(Profile(operators=(one,), precision=precision))]

    assert severity(banned, Precision()) == []
    assert severity(banned, half) == ["warning"]
    for precision in (half, replace(half, autocast=("bfloat16",))):
        assert severity(replace(banned, precision=""), precision) == ["error"]


def test_a_script_in_float32_hears_of_what_float16_cannot_hold_where_that_is_advised() -> None:
    fill = Operator("full_like", "pool", LINE, "O1/float16", "unsupported", "float16", 1e9)
    plain = replace(HEALTHY, operators=(fill,))
    [found] = findings(plain)
    assert (found.code, found.severity.value, found.span.line, found.layer) == ("AMP617", "warning", 12, "pool")
    assert "once autocast is on, as advised, it raises an error in FP16, which cannot hold 1e9" in found.message
    assert findings(replace(plain, device=H200)) == []
    # What autocast itself objects to is no fault of a script that has none.
    for trouble in ("mixed", "banned"):
        assert findings(replace(plain, operators=(replace(fill, trouble=trouble, amax=3.0),))) == []


def test_whole_numbers_that_have_become_the_same_are_told_whatever_they_change() -> None:
    half = Operator("arange", "embed", LINE, "O0/float16", "collapse", "float16", 4095.0, lost=0.25)
    assert codes(half) == [("AMP618", "embed", 12)]
    assert codes(replace(half, precision="O3/float16")) == []
    [found] = findings(replace(Profile(), operators=(replace(half, dtype="bfloat16"),)))
    assert "in BF16, which lacks some beyond 256" in found.message


def test_gradients_that_are_wrong_in_bfloat16_alone_are_news_for_a_script_that_uses_it() -> None:
    brain = Precision(("bfloat16",), False, ("float32",))
    off = replace(OFF, precision="O1/bfloat16")
    wrong = Replay(outcomes=(Outcome("O1/bfloat16", 0.08, 0.7), Outcome("O1/float16", 0.01, 0.08)))
    assert codes(off, OFF, replay=wrong, precision=brain) == [("AMP618", "norm", 12)]
    assert codes(off, OFF, replay=wrong) == []
    mild = Replay(outcomes=(Outcome("O1/bfloat16", 0.08, 0.2), Outcome("O1/float16", 0.01, 0.08)))
    assert codes(off, OFF, replay=mild, precision=brain) == []


def test_a_constant_that_ended_the_run_is_an_error_in_whichever_half() -> None:
    fill = Operator("masked_fill_", "", LINE, "", "unsupported", "float16", 1e9)
    half = Precision(("float16",), True, ("float32",))

    def told(one: Operator) -> tuple[str, str, str]:
        [found] = findings(Profile(operators=(one,), precision=half))
        return found.code, found.severity.value, found.message

    code, severity, message = told(fill)
    assert (code, severity) == ("AMP617", "error")
    assert "raises an error in FP16, which cannot hold 1e9: fill with -inf or torch.finfo(x.dtype).min" in message
    assert message.endswith("the run ended here")
    assert "in BF16, which cannot hold its constant" in told(replace(fill, dtype="bfloat16", amax=0.0))[2]


def test_an_operator_in_place_is_not_told_to_write_into_a_copy() -> None:
    half = Precision(("float16",), True, ("float32",))
    mixed = Operator("index_add_", "", LINE, "O1/float16", "mixed", "float16", 3.0)
    for name, cure in (
        ("index_add_", "cast what it reads with .to() to the dtype of what it writes into"),
        ("index_add", "cast with .float() or .to() what it reads"),
    ):
        [found] = findings(Profile(operators=(replace(mixed, operator=name),), precision=half))
        assert found.message.endswith(cure)
