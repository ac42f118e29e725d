"""The HTML report as text: what it tells, that it is one file, and that no name can be more than a name."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from math import log2
from typing import TYPE_CHECKING

import pytest

from amp_doctor.diagnosis.profile import GRADIENTS, ROLES, Profile
from amp_doctor.diagnosis.recommend import recommend
from amp_doctor.diagnosis.recommendation import LossScale
from amp_doctor.diagnosis.serial import from_values
from amp_doctor.diagnosis.symptoms import findings
from amp_doctor.numerics.formats import FP16
from amp_doctor.report.html_text import embedded
from amp_doctor.report.to_html import plotly, to_html
from tests.conftest import ROOT
from tests.report.pages import HOSTILE, LINT, PROOF, Seen, big, named, page, tame
from tests.report.record import PROFILES, RUNS
from tests.report.samples import ADVICE, FINDINGS, HEAD, SICK

if TYPE_CHECKING:
    from amp_doctor.finding import Finding

LIBRARY = plotly()


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen(page())


def words(text: str) -> str:
    """The page without the library and the numbers."""
    return text.replace(LIBRARY, "").partition('<script type="application/json"')[0]


def test_it_is_one_file_that_needs_no_network(seen: Seen) -> None:
    assert "default-src 'none'" in seen.policy
    assert [tag for tag, _ in seen.tags if tag in ("iframe", "object", "embed", "img", "form")] == []
    outside = [link for link in seen.links if not link.startswith(("#", "data:"))]
    # Pages of rules are linked, and nothing is loaded from anywhere.
    assert all(link.startswith("https://github.com/amp-doctor/amp-doctor/") for link in outside)
    style = words(page()).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_only_the_scripts_that_are_named_by_their_hash_may_run(seen: Seen) -> None:
    hashes = {f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'" for one in seen.scripts[1:]}
    [allowed] = [part for part in seen.policy.split("; ") if part.startswith("script-src ")]
    assert set(allowed.split()[1:]) == hashes
    assert not any(name.startswith("on") for _, names in seen.tags for name in names)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_never_markup(name: str) -> None:
    text = named(name)
    met, calm = Seen(text), Seen(tame())
    assert met.tags == calm.tags
    assert met.comments == calm.comments == 0
    assert met.scripts[1:] == calm.scripts[1:]
    text.encode("utf-8")


@pytest.mark.parametrize("name", HOSTILE)
def test_numbers_are_embedded_so_that_they_read_back(name: str) -> None:
    told = embedded({name: [name, 1, None]})
    assert not set("<>&\u2028\u2029") & set(told)
    readable = name.encode("utf-8", "backslashreplace").decode()
    assert json.loads(told) == {readable: [readable, 1, None]}
    # What names a layer in the text is what names it in the numbers, so that the one leads to the other.
    values = Seen(named(name)).values
    assert len(values["layers"]) == 3


def test_the_words_of_the_verdict_and_all_findings_are_in_the_text() -> None:
    text = words(page())
    for told in (ADVICE.dtype, ADVICE.reasons[0][:40], "8192", "decoder.wo: its output reaches 98304", "medium"):
        assert told in text
    for one in FINDINGS:
        assert one.code in text
        assert one.message in text
    assert "Stopped after 50 steps" in text
    assert "step 41, forward, decoder.wo, linear, model.py:41" in text


def test_findings_of_the_linter_stand_beside_the_layers_they_explain(seen: Seen) -> None:
    by_name = {layer[0]: layer for layer in seen.values["layers"]}
    # On the line that calls the layer, and by a line of the trail.
    assert by_name["decoder.wo"][4] == [0]
    assert by_name["encoder.rnn"][4] == [1]
    assert by_name["head"][4] == []
    assert [one[0] for one in seen.values["lint"]] == ["AMP502", "AMP201"]
    assert {"lint-0", "lint-1", "finding-0", "finding-1"} <= set(seen.ids)
    text = words(page())
    assert "silenced by a comment" not in text
    assert "self.rnn = torch.nn.LSTM(8, 8)" in text


def test_without_lint_there_is_no_section_for_it() -> None:
    assert "source" in Seen(page()).ids
    assert "source" not in Seen(page(lint=())).ids


def test_what_the_run_says_of_the_source_is_told() -> None:
    spot = replace(LINT[0], code="AMP503", span=replace(LINT[0].span, line=30, end_line=30))
    text = words(page(lint=[spot]))
    assert "confirmed by the run" in text
    assert "softmax on this line: overflow under O1/float16" in text


def test_the_curves_are_those_of_the_histograms(seen: Seen) -> None:
    for layer, told in zip(SICK.layers, seen.values["layers"], strict=True):
        for role, site in zip(ROLES, told[5], strict=True):
            if role not in GRADIENTS or site is None:
                continue
            curve = [*site[10][0], *[0] * 25][:25]
            counts = layer.sites[role].histogram
            assert curve == pytest.approx([1e6 * counts.lost(FP16, 2.0**k) for k in range(25)], abs=1)
            first = next((k for k in range(25) if counts.overflowing(FP16, 2.0**k)), -1)
            assert site[10][1] == first


def test_a_loss_scale_beyond_the_usual_ones_is_on_the_page() -> None:
    advice = replace(ADVICE, loss_scale=LossScale(True, 2.0**33, (2.0**20, 2.0**34)))
    tiny = replace(SICK, scaler=())
    values = Seen(to_html(tiny, FINDINGS, advice, lint=(), sources={})).values
    assert values["scales"]["advised"] == 2**33
    assert values["scales"]["largest"] == 34
    assert {len(total[1]) for total in values["totals"] if total} == {35}
    usual = Seen(page()).values
    assert usual["scales"]["largest"] == 24
    assert {len(total[1]) for total in usual["totals"] if total} == {25}


def test_the_cells_of_the_heat_map_are_shares_of_all_that_is_not_zero(seen: Seen) -> None:
    for layer, told in zip(SICK.layers, seen.values["layers"], strict=True):
        for role, site in zip(ROLES, told[5], strict=True):
            assert (site is None) == (role not in layer.sites)
            if site is not None:
                counts = layer.sites[role].histogram
                assert site[7] == min(counts.exponents)
                assert len(site[8]) == max(counts.exponents) - min(counts.exponents) + 1
                assert sum(site[8]) == pytest.approx(1e6, abs=len(site[8]))


def test_the_limits_are_those_of_the_formats(seen: Seen) -> None:
    half, brain = seen.values["limits"][:2]
    assert (half["name"], half["zero"], half["normal"]) == ("float16", -25, -14)
    assert half["over"] == pytest.approx(log2(65520), abs=1e-4)
    assert half["overflow"] == 65520
    assert (brain["name"], brain["zero"], brain["normal"]) == ("bfloat16", -134, -126)


def test_the_proof_is_told_and_its_losses_can_be_drawn() -> None:
    text = to_html(SICK, FINDINGS, replace(ADVICE, verified=PROOF))
    assert "the loss follows float32" in words(text)
    values = Seen(text).values
    assert values["proof"][1] == ["as written", [2.0, 1.5, "nan"]]
    assert "proof-chart" in Seen(text).ids
    assert "proof" not in Seen(page()).ids
    failed = replace(PROOF, runs=(), verdict="inconclusive", reason="it could not be tried")
    assert "proof-chart" not in Seen(to_html(SICK, FINDINGS, replace(ADVICE, verified=failed))).ids


def test_ids_are_unique_and_every_label_in_the_page_exists(seen: Seen) -> None:
    assert len(seen.ids) == len(set(seen.ids))
    assert {link[1:] for link in seen.links if link.startswith("#")} <= set(seen.ids)


def test_a_large_model_stays_small() -> None:
    profile = big()
    found: list[Finding] = [
        replace(FINDINGS[1], layer=layer.name, message="41% of the gradients are rounded to zero in float16")
        for layer in profile.layers
    ]
    text = page(profile, findings=found)
    # 10 MB are promised; the library takes 1.5 of these.
    assert len(text.encode()) < 4_500_000
    # Every one of them can be led to, whether told in full or not.
    assert {f"finding-{index}" for index in range(2000)} <= set(Seen(text).ids)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_every_recorded_run_has_its_page(name: str) -> None:
    profile = from_values(json.loads((PROFILES / f"{name}.json").read_text("utf-8")), name)
    found = findings(profile)
    text = to_html(profile, found, recommend(profile))
    assert text == to_html(profile, found, recommend(profile))
    met = Seen(text)
    assert {f"finding-{index}" for index in range(len(found))} <= set(met.ids)
    assert len(met.values["layers"]) == len(profile.layers)


def test_a_run_that_saw_nothing_says_so() -> None:
    text = words(to_html(Profile(), [], recommend(Profile())))
    assert "No optimizer step was seen" in text
    assert "No module of torch.nn ran." in text
    assert 'id="heat"' not in text


def test_infinities_and_nan_are_no_obstacle() -> None:
    odd = replace(
        SICK,
        layers=(HEAD,),
        loss=(float("nan"), float("inf"), 1.0),
        scaler=tuple(replace(event, scale=float("inf")) for event in SICK.scaler),
        operators=tuple(replace(one, amax=float("inf"), error=float("nan")) for one in SICK.operators),
    )
    values = Seen(page(odd)).values
    assert values["loss"] == ["nan", "inf", 1.0]
    assert values["operators"][0][7] == ["inf", "inf"]
    assert values["operators"][0][9] is None


def test_the_page_is_loaded_only_where_it_is_wanted() -> None:
    code = (
        "import sys\nfrom amp_doctor.cli import status_of\n"
        f"status_of(['report', '--fail-on', 'never', {str(PROFILES / 'tones.json')!r}])\nprint(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "amp_doctor.report.to_profile_text" in loaded
    assert "amp_doctor.report.to_html" not in loaded
