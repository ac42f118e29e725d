"""Every block of every page in `rules/` is executed, and fails at the page's own line number."""

from __future__ import annotations

import builtins
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from amp_doctor import catalog
from amp_doctor.catalog import Block, Page, PageError
from tests.conftest import ROOT, Settings, fix_text, lint_text
from tests.prelude import PRELUDE, free_names, prelude
from tests.rule_index import refreshed

if TYPE_CHECKING:
    from amp_doctor.finding import Finding

HEADINGS = ["What goes wrong", "When it is right", "What is not seen", "References"]
# These three are about files that cannot be examples: they do not parse, crash a check, cannot be read.
WITHOUT_EXAMPLES = {"AMP001", "AMP003", "AMP004"}

_EXPECTATION = re.compile(r"\s*# (AMP\d{3}: .*)$")


@dataclass(frozen=True, slots=True)
class Example:
    page: Page
    block: Block
    before: Block | None = None

    @property
    def place(self) -> str:
        return f"{self.page.file.name}:{self.block.line}"


def pages() -> list[Page]:
    """The pages that can be read; test_page_is_well_formed fails for the others."""
    found = []
    for code in catalog.codes():
        try:
            page = catalog.page(code)
        except PageError:
            continue
        if page.removed is None:
            found.append(page)
    return found


def examples(*kinds: str) -> list[Example]:
    found = []
    for page in pages():
        bad = None
        for block in page.blocks:
            bad = block if block.kind == "bad" else bad
            if block.language == "python" and block.kind in kinds:
                found.append(Example(page, block, bad))
    return found


def each(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "example", [pytest.param(e, id=f"{e.page.code}:{e.block.line}-{e.block.kind}") for e in examples(*kinds)]
    )


@pytest.mark.parametrize("code", catalog.codes())
def test_page_is_well_formed(code: str) -> None:
    page = catalog.page(code)
    if page.removed is not None:
        return
    headings = re.findall(r"^## (.+)$", page.text, re.MULTILINE)
    assert headings == HEADINGS, f"{page.file.name}: the headings are {HEADINGS}, in this order"
    kinds = {block.kind for block in page.blocks}
    assert kinds <= {"bad", "fixed", "good", "missed", ""}
    if code not in WITHOUT_EXAMPLES:
        assert {"bad", "good"} <= kinds, f"{page.file.name}: at least one bad and one good block"
        assert ("fixed" in kinds) == (page.fix != "none"), (
            f"{page.file.name}: a fixed block if and only if it has a fix"
        )
    assert page.default == (not code.startswith("AMP9")), f"{page.file.name}: AMP9 and only AMP9 is opt-in"


@each("bad", "fixed", "good", "missed")
def test_block_compiles(example: Example) -> None:
    if example.page.code not in WITHOUT_EXAMPLES:
        padding = "\n" * (example.block.line - 1)
        compile(padding + example.block.code, str(example.page.file), "exec")


@each("bad", "fixed", "good", "missed")
def test_block_uses_no_name_that_nothing_defines(example: Example) -> None:
    if example.page.code not in WITHOUT_EXAMPLES:
        unknown = free_names(example.block.code) - PRELUDE.keys() - set(dir(builtins))
        assert unknown == set(), f"{example.place}: neither the block nor the prelude defines {', '.join(unknown)}"


@each("bad")
def test_bad_block_has_the_findings_of_its_comments(example: Example) -> None:
    if example.page.code in WITHOUT_EXAMPLES:
        return
    assert mismatches(example, lint(example)) == [], example.place


@each("bad")
def test_page_without_a_fix_makes_none(example: Example) -> None:
    if example.page.fix == "none":
        made = [finding.fix for finding in lint(example) if finding.code == example.page.code and finding.fix]
        assert made == [], f"{example.place}: the page says fix = 'none'"


@each("fixed")
def test_fixed_block_is_what_the_fix_makes_of_the_bad_one(example: Example) -> None:
    assert example.before is not None, f"{example.place}: a fixed block follows a bad one"
    code = example.before.code
    before = prelude(code)
    fixed = without_prelude(fix_text(before + code, **settings(example.page)), before)
    assert without_comments(fixed) == without_comments(example.block.code), example.place


@each("fixed", "good", "missed")
def test_block_is_silent(example: Example) -> None:
    assert mismatches(Example(example.page, without_expectations(example.block)), lint(example)) == [], example.place


def test_every_page_has_a_check_and_every_check_a_page() -> None:
    from amp_doctor.lint.checks.registry import codes

    probed = {"AMP0", "AMP6"}
    written = {page.code for page in pages() if page.code[:4] not in probed}
    checked = {code for code in codes() if code[:4] not in probed}
    assert written == checked, f"no check: {sorted(written - checked)}; no page: {sorted(checked - written)}"


def test_a_bad_block_somewhere_gives_the_fix_the_page_promises() -> None:
    missing = []
    for page in pages():
        made = {
            str(finding.fix.applicability)
            for block in page.blocks
            if block.kind == "bad" and block.language == "python" and page.code not in WITHOUT_EXAMPLES
            for finding in lint(Example(page, block))
            if finding.fix and finding.code == page.code
        }
        if page.fix != "none" and page.fix not in made:
            missing.append(f"{page.code}: fix = {page.fix!r}, made {sorted(made)}")
    assert missing == []


def test_names_are_unique() -> None:
    names = list(catalog.codes().values())
    assert sorted(set(names)) == sorted(names)


def test_readme_of_the_rules_is_up_to_date(bless: bool) -> None:
    readme = ROOT / "rules" / "README.md"
    text = readme.read_text("utf-8")
    wanted = refreshed(text, pages())
    if bless:
        readme.write_text(wanted, "utf-8")
    elif text != wanted:
        pytest.fail("rules/README.md is out of date; pytest tests/test_rule_pages.py --bless rewrites it")


def settings(page: Page) -> Settings:
    """The page's own code is selected even when opt-in; a page bound to a torch version is linted at that version."""
    return {"select": (page.code,), "torch_version": torch_version(page.torch)}


def torch_version(bound: str | None) -> tuple[int, ...] | None:
    """A version the bound allows: `<2.2` -> 2.1, `>=2.4` -> 2.4."""
    if bound is None:
        return None
    found = re.fullmatch(r"(<|>=)(\d+)\.(\d+)", bound)
    assert found is not None, f"a torch bound has the form <2.2 or >=2.4, not {bound!r}"
    major, minor = int(found[2]), int(found[3])
    return (major, minor - 1) if found[1] == "<" else (major, minor)


def lint(example: Example) -> list[Finding]:
    """Findings of a block; their lines are still those of prelude and block together."""
    return lint_text(prelude(example.block.code) + example.block.code, **settings(example.page))


def mismatches(example: Example, findings: list[Finding]) -> list[str]:
    """One line for each finding that no comment expects and each comment without its finding."""
    before = prelude(example.block.code).count("\n")
    found = defaultdict(list)
    for finding in findings:
        found[finding.span.line - before].append((finding.code, finding.message))
    wanted = expectations(example.block.code)
    wrong = []
    for line in sorted(found.keys() | wanted.keys()):
        left = list(found[line])
        place = f"{example.page.file.name}:{line + example.block.line - 1}" if line > 0 else "in the prelude"
        for code, words in wanted.get(line, []):
            match = next((f for f in left if f[0] == code and words.casefold() in f[1].casefold()), None)
            if match is None:
                same = [message for other, message in left if other == code]
                wrong.append(f"{place}: no {code} with the words {words!r}" + (f"; it says {same}" if same else ""))
                left = [f for f in left if f[0] != code]
            else:
                left.remove(match)
        wrong += [f"{place}: unexpected {code}: {message}" for code, message in left]
    return wrong


def expectations(code: str) -> dict[int, list[tuple[str, str]]]:
    """Line of the block -> the codes and words its trailing comment expects."""
    wanted = {}
    for number, line in enumerate(code.splitlines(), 1):
        if comment := _EXPECTATION.search(line):
            parts = re.split(r"\s*\|\s*(?=AMP\d{3}: )", comment[1])
            wanted[number] = [(part[:6], part[8:].strip()) for part in parts]
    return wanted


def without_expectations(block: Block) -> Block:
    return Block(block.kind, block.language, without_comments(block.code), block.line)


def without_comments(code: str) -> str:
    return "".join(_EXPECTATION.sub("", line) + "\n" for line in code.splitlines())


def without_prelude(code: str, before: str) -> str:
    """`code` without the lines of the prelude; what a fix put between them stays."""
    expected = before.splitlines()
    kept = []
    for line in code.splitlines():
        if expected and line == expected[0]:
            expected.pop(0)
        else:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)
