"""The probe's report for people."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.profile import Device, Layer, Precision, Profile, ScalerEvent, Site, Steps
from amp_doctor.diagnosis.recommendation import KeepFP32, LossScale, Recommendation
from amp_doctor.numerics.histogram import ExponentHistogram
from amp_doctor.report.text import cells
from amp_doctor.report.to_profile_text import to_profile_text
from tests.conftest import ROOT
from tests.report.samples import ADVICE, ENCODER, FINDINGS, HEAD, SICK, normal, site

if TYPE_CHECKING:
    from amp_doctor.finding import Finding

NOTHING = Recommendation("float32", "O0", LossScale(False, None, None), confidence="low")


def report(
    profile: Profile = SICK,
    findings: tuple[Finding, ...] = FINDINGS,
    advice: Recommendation = ADVICE,
    *,
    width: int = 80,
    unicode: bool = True,
) -> str:
    return to_profile_text(profile, findings, advice, width=width, color=False, unicode=unicode)


def section(title: str, text: str) -> list[str]:
    """The lines of one section of a report."""
    return text.partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()


def test_the_verdict_comes_first() -> None:
    assert report().startswith("""\
Verdict: float16, opt level O1 (autocast and a GradScaler)
  init_scale: 8192, and a scaler is needed; 1024 to 65536 are admissible
  in float32: decoder.wo: its output reaches 98304, beyond 65504
  because:    gradients of encoder.rnn lie around 2^-24, where float16 rounds
              to zero, and a scale of 1024 brings them back
  first inf:  step 41, forward, decoder.wo, linear, model.py:41
  confidence: medium

model.py:41:1: error AMP605 activation-overflow
  the output of decoder.wo reaches 98304; float16 ends at 65504, and no loss
  scale helps a forward pass
  more: amp-doctor explain AMP605

model.py:23:1: warning AMP601 gradients-lost-in-half
  layer: encoder.rnn
  41% of the non-zero gradients are rounded to zero in float16 at scale 1, 0.1%
  at 8192
  more: amp-doctor explain AMP601

Layers that matter, worst first
""")


def test_layers_have_bars_between_the_limits_of_float16() -> None:
    shown = report().partition("at that end.\n\n")[2].partition("\n\nOperators")[0]
    assert (
        shown
        == """\
                                                             plain in use   best
                      lost 2^-25| sub  |2^-14 normal   |2^16     1   8192   8192

  decoder.wo  Linear  model.py:41
  activation                    |      |      ▁▁▁▁▁▁▂▄█|▁    max 196608
  act. grad                     |    ▁▁|▁▁▁▁▁▂▄█▁      |     <0.1%      0      0

  encoder.rnn  LSTM  model.py:23
  act. grad                   ▁▁|▁▁▁▁▁▁|▄█▁            |       38%  <0.1%  <0.1%
  weight grad                  ▁|▁▁▁▁▁▁|▂▄█▁           |      9.9%  <0.1%  <0.1%
  update      61% too small to move a weight in bfloat16
  weight grad calibration foretold <0.1% lost, 10% was observed

  1 layer is not shown; at most <0.1% of a gradient is lost there at scale 1."""
    )


def test_what_came_out_nan_was_not_lost() -> None:
    layer = next(one for one in SICK.layers if one.name == "encoder.rnn")
    seen = layer.observed["weight_grad"]
    for shown, counts in (
        (False, ExponentHistogram(nan=1000)),
        (False, ExponentHistogram(nan=1000, zeros=1000)),
        (True, seen.histogram + ExponentHistogram(nan=1000)),
    ):
        broken = replace(layer, observed={"weight_grad": replace(seen, histogram=counts)})
        told = report(replace(SICK, layers=tuple(broken if one is layer else one for one in SICK.layers)))
        assert ("calibration foretold <0.1% lost, 10% was observed" in told) == shown


def test_the_run_in_time() -> None:
    assert section("Timeline", report()) == [
        "  steps:    50 of 50 attempted, 47 taken, 3 skipped",
        "  loss:     █▇▇▆▅▅▅▄▄▄▄▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁x▁▁▁▁▁▁▁▁▁",
        "            2.5 -> 0.5 over 50 values; 1 not finite (x NaN, ^ inf), the first",
        "            is number 41",
        "  scale:    xxx" + "▁" * 47,
        "            32768 from step 1, 16384 from step 2, 8192 from step 3; infinite",
        "            gradients (x) at 3 steps: 1, 2, 3; infinities came first from",
        "            decoder.wo",
        "  AdamW:    50 attempted, 47 taken, 3 skipped, lr 0.0003, eps 1e-08, float32",
        "            weights, float32 state",
    ]


def test_the_rest_says_what_it_rests_on() -> None:
    text = report()
    assert section("Operators", text) == [
        "  softmax:  overflow under O1/float16, reaches 120000, seen in float16,",
        "            encoder.attention, model.py:30",
    ]
    assert (
        section("Memory and speed (estimates)", text)[0]
        == "  memory: O0 18.1 MiB   O1 13.8 MiB   O2 14.4 MiB   O3 7.6 MiB"
    )
    assert '  scaler = torch.amp.GradScaler("cuda", init_scale=8192.0)\n\n  with torch.autocast' in text
    assert section("What was measured", text) == [
        "  command: train.py --epochs 3",
        "  mode:    auto, the first steps calibrated, then the script as written",
        "  device:  cpu",
        "  torch:   2.13.0+cpu",
        "  script:  autocast to float16, a GradScaler, weights in float32",
        "  time:    12.3 s",
        "  counted: 3 layers, 1,119,990 elements",
    ]
    assert text.endswith("\n\nFound 2 findings (1 error, 1 warning) in 50 steps.\n")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_lines_keep_to_the_width(width: int) -> None:
    for line in report(width=width).splitlines():
        # Code to paste is not broken.
        assert cells(line) <= width or line.startswith("  scaler = "), line


def test_a_terminal_that_knows_ascii_only_gets_ascii() -> None:
    text = report(unicode=False)
    assert text.isascii()
    assert "  act. grad                   ..|......|=@.            |       38%" in text


def test_colour_changes_the_look_only() -> None:
    colored = to_profile_text(SICK, FINDINGS, ADVICE, width=80, color=True)
    assert "\x1b[" in colored
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in bare.splitlines()] == report().splitlines()


def test_without_steps_that_is_said_first() -> None:
    empty = Profile(script="train.py", command=("train.py",), mode="auto", steps=Steps(50), ended="finished")
    text = report(empty, (), NOTHING)
    assert text.startswith(
        "No optimizer step was seen: what follows rests on no training step.\n"
        "The script finished by itself, before a step.\n\n"
        "Verdict: float32, opt level O0 (everything in float32)\n"
    )
    assert section("Layers", text) == ["  none was seen: no module of torch.nn ran forward"]
    assert section("Timeline", text) == ["  steps:    0 of 50 attempted, 0 taken, 0 skipped"]
    assert text.endswith("Without a step there was nothing to judge.\n")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("", "How the run ended is not recorded: it was cut off, after 12 steps of 50.\n"),
        ("finished", "The script finished by itself, after 12 steps of 50.\n"),
        ("time-limit", "The time limit was reached, after 12 steps of 50.\n"),
        ("interrupted", "The run was interrupted, after 12 steps of 50.\n"),
        ("exception", "The script failed with an exception, after 12 steps of 50.\n"),
        ("steps", "Verdict: "),
    ],
)
def test_an_early_end_is_told(ended: str, words: str) -> None:
    assert report(replace(SICK, ended=ended, steps=Steps(50, 12, 12, 0))).startswith(words)


def test_a_script_that_ends_with_the_last_step_has_not_ended_early() -> None:
    assert report(replace(SICK, ended="finished")).startswith("Verdict: ")


def test_emulation_is_said_before_everything_else() -> None:
    emulated = replace(SICK, device=Device("cpu", "", None, False, True), ended="interrupted")
    assert report(emulated).startswith("Emulated: the script ran on a CPU under the autocast rules of CUDA")
    assert "  device:  cpu, emulated\n" in report(emulated)


@pytest.mark.parametrize(
    ("dtype", "scale", "words"),
    [
        (
            "float16",
            LossScale(True, 8.0, (8.0, 8.0)),
            "  init_scale: 8, and a scaler is needed; 8 alone is admissible\n",
        ),
        (
            "float16",
            LossScale(False, 65536.0, (1.0, 2.0**20)),
            "  init_scale: 65536, though no scaler is needed: without one hardly",
        ),
        (
            "bfloat16",
            LossScale(False, None, None),
            "  init_scale: none, bfloat16 needs none\n  float16?:   init_scale not known, as no gradient was seen\n",
        ),
        (
            "bfloat16",
            LossScale(True, None, None),
            "  float16?:   init_scale none: no scale keeps the small gradients without\n",
        ),
    ],
)
def test_the_loss_scale_in_words(dtype: str, scale: LossScale, words: str) -> None:
    assert words in report(advice=replace(ADVICE, dtype=dtype, loss_scale=scale))


def test_layers_for_float32_belong_to_float16_when_another_dtype_is_advised() -> None:
    text = report(advice=replace(ADVICE, dtype="bfloat16"))
    assert "              would need decoder.wo in float32: its output reaches 98304,\n" in text


def test_many_layers_in_float32_are_counted() -> None:
    kept = tuple(KeepFP32(f"layer.{n}", "it overflows") for n in range(7))
    text = report(advice=replace(ADVICE, keep_fp32=kept))
    assert "              layer.3: it overflows\n              and 3 more layers, named in the snippet\n" in text
    assert "layer.4: it" not in text


def test_many_findings_of_one_code_are_told_once() -> None:
    many = tuple(replace(FINDINGS[0], layer=f"block.{n}") for n in range(14))
    text = report(findings=many)
    assert text.count("error AMP605 activation-overflow") == 3
    assert (
        "  also: block.3, block.4, block.5, block.6, block.7, block.8, block.9,\n        block.10, and 3 more\n" in text
    )
    assert text.count("more: amp-doctor explain AMP605") == 1
    assert text.endswith("Found 14 findings (14 errors) in 50 steps.\n")


def test_a_healthy_model_shows_what_healthy_looks_like() -> None:
    layers = tuple(replace(HEAD, name=f"block.{n}", order=n) for n in range(9))
    text = report(replace(SICK, layers=layers), (), replace(ADVICE, keep_fp32=()))
    assert "\nNo layer stands out; those nearest to the limits\n" in text
    assert "  6 layers are not shown; at most <0.1% of a gradient is lost there at scale 1.\n" in text
    assert text.endswith("Nothing was found wrong in 50 steps.\n")


def test_layers_with_findings_come_before_all_others() -> None:
    layers = tuple(replace(ENCODER, name=f"rnn.{n}", order=n) for n in range(9))
    text = report(
        replace(SICK, layers=(*layers, HEAD)), (replace(FINDINGS[1], layer="head"),), replace(ADVICE, keep_fp32=())
    )
    shown = re.findall(r"^  (rnn\.\d|head)  ", text, re.MULTILINE)
    assert (shown[0], len(shown)) == ("head", 6)
    assert "4 layers are not shown, 4 of them for want of room; at most 38% of" in " ".join(text.split())


def test_nan_and_infinities_are_counted_below_the_bar() -> None:
    counts = replace(normal(1), nan=5, positive_inf=2)
    sick = Layer("head", "Linear", None, 1, {"activation": Site("float16", counts)})
    text = report(replace(SICK, layers=(sick,)), (), replace(ADVICE, keep_fp32=()))
    assert re.search(r"^  activation .*max \d+\n  not finite  activation 5 NaN, 2 inf$", text, re.MULTILINE)


def test_a_gradient_without_a_finite_value_loses_nothing_that_could_be_told() -> None:
    broken = Layer("head", "Linear", None, 1, {"weight_grad": Site("float32", ExponentHistogram(nan=8, zeros=3))})
    text = report(replace(SICK, layers=(broken,)))
    assert re.search(r"^  weight grad  [ |]*  -      -      -$", text, re.MULTILINE)
    assert "\n  not finite  weight grad 8 NaN\n" in text


def test_swallowed_updates_concern_weights_in_half_precision_only() -> None:
    weight = replace(ENCODER.sites["weight"], dtype="float32")
    spared = replace(ENCODER, sites={**ENCODER.sites, "weight": weight})
    assert "too small to move" not in report(replace(SICK, layers=(spared,)))


def test_a_gradient_that_overflows_at_a_scale_says_so() -> None:
    large = Layer("head", "Linear", None, 1, {"weight_grad": site(4)})
    text = report(replace(SICK, layers=(large,)), width=80)
    assert re.search(r"^  weight grad .*       0    inf    inf$", text, re.MULTILINE)


def test_without_a_scaler_gradients_are_drawn_at_the_best_scale() -> None:
    plain = replace(SICK, scaler=(), precision=Precision((), False, ("float32",), False))
    text = report(plain)
    assert "gradients times 8192 (best)" in " ".join(text.split())
    assert "plain   best\n" in text
    assert "  mode:    auto, nothing to calibrate: the script as written\n" in text
    none = report(plain, advice=replace(ADVICE, loss_scale=LossScale(True, None, None)))
    assert "gradients times 1 (plain)" in " ".join(none.split())


def test_a_scaler_that_changes_often_is_told_in_short() -> None:
    events = tuple(ScalerEvent(step, 2.0 ** (30 - step), True) for step in range(1, 21))
    told = " ".join(" ".join(section("Timeline", report(replace(SICK, scaler=events)))).split())
    assert "2^29 from step 1, 2^28 from step 2, 2^27 from step 3, 2^26 from step 4, 13 changes, 4096 from" in told
    assert "infinite gradients (x) at 20 steps: 1, 2, 3, 4, 5, 6, 7, 8, ..." in told


def test_a_loss_that_was_never_finite() -> None:
    told = section("Timeline", report(replace(SICK, loss=(nan, nan))))
    assert told[1:3] == [
        "  loss:     xx",
        "            nan -> nan over 2 values; 2 not finite (x NaN, ^ inf), the first",
    ]


def test_sampled_counts_and_ranks_are_said() -> None:
    layer = replace(HEAD, sites={"weight_grad": replace(HEAD.sites["weight_grad"], sampled=True)})
    text = report(replace(SICK, layers=(layer,), ranks=4))
    assert "  time:    12.3 s, 4 ranks\n" in text
    assert re.search(r"^  counted: 1 layer, [\d,]+ elements, a sample: shares are estimates$", text, re.MULTILINE)


def test_control_characters_do_not_reach_the_terminal() -> None:
    evil = "\x1b[2J\x07\u202e"
    layer = replace(HEAD, name=f"a{evil}", type=evil)
    profile = replace(
        SICK,
        layers=(layer,),
        notes=(evil,),
        command=(evil,),
        script=evil,
        torch=evil,
        device=Device(evil, evil),
        mode=evil,
        optimizers=(replace(SICK.optimizers[0], name=evil, dtypes=(evil,)),),
        operators=(replace(SICK.operators[0], operator=evil, layer=evil),),
    )
    finding = replace(FINDINGS[0], path=evil, message=evil, layer=evil)
    advice = replace(ADVICE, dtype=evil, snippet=evil, reasons=(evil, evil), keep_fp32=(KeepFP32(evil, evil),))
    text = report(profile, (finding,), advice)
    assert "?[2J??" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_long_names_are_cut_in_their_middle() -> None:
    layer = replace(ENCODER, name="model.decoder.layers.11." + "very_" * 20 + "long.out_proj")
    text = report(replace(SICK, layers=(layer,)), width=60)
    [line] = [line for line in text.splitlines() if line.startswith("  model.decoder")]
    assert len(line) <= 60
    assert line.endswith("long.out_proj")
    assert "..." in line


@pytest.mark.parametrize(
    "profile", [Profile(), Profile(layers=(Layer(""),)), Profile(layers=(Layer("a", sites={"weight_grad": Site()}),))]
)
@pytest.mark.parametrize("width", [1, 20, 60])
def test_a_profile_that_holds_next_to_nothing(profile: Profile, width: int) -> None:
    text = " ".join(report(profile, (), NOTHING, width=width).split())
    assert text.startswith("No optimizer step was seen: what follows rests on no training step. How the run ended is")


def test_what_was_not_observed_is_not_compared() -> None:
    bare = replace(ENCODER, observed={"weight_grad": Site("float16", ExponentHistogram())})
    assert "foretold" not in report(replace(SICK, layers=(bare,)))
    other = replace(ENCODER, observed={"weight_grad": Site("bfloat16", normal(-21))})
    assert "foretold" not in report(replace(SICK, layers=(other,)))


def test_plain_reports_do_not_load_rich_and_none_loads_torch() -> None:
    code = (
        "import sys; from tests.report.samples import *; from amp_doctor.report.to_profile_text import to_profile_text\n"
        "to_profile_text(SICK, FINDINGS, ADVICE, width=80, color={})\n"
        "print(any(name.startswith('rich.') for name in sys.modules), 'torch' in sys.modules)"
    )
    for color, loaded in ((False, "False False"), (True, "True False")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(color)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == loaded
