"""Real reports, cut down: each fault is found where it stands, its correction and the tempting code are not."""

from __future__ import annotations

import pytest

from amp_doctor import catalog
from tests.conftest import ROOT
from tests.inline import expectations, mismatches_in

CASES = ROOT / "fixtures" / "cases"
FILES = sorted(path.relative_to(CASES).as_posix() for path in CASES.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_findings_are_those_of_the_comments(file: str) -> None:
    assert mismatches_in(CASES / file) == []


@pytest.mark.parametrize("file", FILES)
def test_comments_say_what_the_folder_promises(file: str) -> None:
    code = (CASES / file).read_text("utf-8")
    codes = {code for expected in expectations(code).values() for code, _ in expected}
    old_names = {code for code in codes if catalog.page(code).name.startswith("deprecated")}
    if file.startswith("bad/"):
        assert codes, "a bad file without a finding"
    elif not file.startswith("bad/"):
        assert codes == old_names, "only deprecated names are left"


def test_each_bad_file_has_its_correction() -> None:
    bad = {file.removeprefix("bad/") for file in FILES if file.startswith("bad/")}
    assert bad == {file.removeprefix("fixed/") for file in FILES if file.startswith("fixed/")}
    assert len(bad) >= 40


def test_the_list_names_every_case() -> None:
    listed = (CASES / "README.md").read_text("utf-8")
    stems = {file.partition("/")[2].removesuffix(".py") for file in FILES}
    assert sorted(stem for stem in stems if f"| {stem} |" not in listed) == []
