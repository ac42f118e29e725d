"""Every toml block of the AMP6 pages is a profile, and is diagnosed."""

from __future__ import annotations

import re
import tomllib

import pytest

from amp_doctor.diagnosis.registry import symptoms
from amp_doctor.diagnosis.symptoms import findings
from tests.diagnosis.miniature import miniature
from tests.test_rule_pages import Example, expectations, pages

Expected = tuple[str, str | None, str]

_LAYER = re.compile(r'\s*layer\s*=\s*"([^"]*)"')


def examples(*kinds: str) -> list[Example]:
    return [
        Example(page, block)
        for page in pages()
        for block in page.blocks
        if page.code.startswith("AMP6") and block.language == "toml" and block.kind in kinds
    ]


def each(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "example", [pytest.param(e, id=f"{e.page.code}:{e.block.line}-{e.block.kind}") for e in examples(*kinds)]
    )


def expected(code: str) -> list[Expected]:
    """Code, layer and words of each comment; a comment on a line `layer = "..."` is about that layer, else about none."""
    lines = code.splitlines()
    found: list[Expected] = []
    for number, wanted in expectations(code).items():
        named = _LAYER.match(lines[number - 1])
        found += [(code, named[1] if named else None, words) for code, words in wanted]
    return found


def mismatches(code: str) -> list[str]:
    """One line for each finding that no comment expects and each comment without its finding."""
    left = [(finding.code, finding.layer, finding.message) for finding in findings(miniature(code))]
    wrong = []
    for wanted, layer, words in expected(code):
        same = [one for one in left if one[:2] == (wanted, layer)]
        match = next((one for one in same if words.casefold() in one[2].casefold()), None)
        if match is None:
            wrong.append(f"no {wanted} on {layer} with the words {words!r}" + (f"; it says {same}" if same else ""))
        else:
            left.remove(match)
    return [*wrong, *(f"unexpected {one[0]} on {one[1]}: {one[2]}" for one in left)]


@each("bad")
def test_bad_block_has_the_findings_of_its_comments(example: Example) -> None:
    assert mismatches(example.block.code) == [], example.place
    assert example.page.code in {code for code, _, _ in expected(example.block.code)}, example.place


@each("good", "missed")
def test_block_is_silent(example: Example) -> None:
    assert expected(example.block.code) == [], example.place
    assert mismatches(example.block.code) == [], example.place


def test_every_page_has_a_symptom_and_every_symptom_a_page() -> None:
    assert {page.code for page in pages() if page.code.startswith("AMP6")} == symptoms().keys()


def test_probe_pages_have_profiles_for_blocks_and_no_fix() -> None:
    for page in pages():
        if page.code.startswith("AMP6"):
            assert {block.language for block in page.blocks if block.kind} == {"toml"}, page.code
            assert page.fix == "none", page.code


BAD = 'mode = "calibrate"\n[first_nonfinite]\nstep = 3\nphase = "forward"\nlayer = "fc"  # AMP607: step 3\n'


def test_the_harness_sees_what_is_missing_and_what_is_too_much() -> None:
    assert mismatches(BAD) == []
    assert mismatches(BAD.replace("step 3", "step 4")) != []
    assert mismatches(BAD.replace("# AMP607: step 3", "")) != []
    assert mismatches(BAD.replace("  # AMP607", "\nvalue = 'nan'  # AMP607")) != []
    assert tomllib.loads(BAD)["first_nonfinite"]["layer"] == "fc"
