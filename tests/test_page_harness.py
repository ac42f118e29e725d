"""The test of the pages can fail: what it does with findings that do not match the comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_doctor import catalog
from amp_doctor.catalog import Block
from amp_doctor.finding import Finding, Severity, Span
from tests.prelude import prelude
from tests.rule_index import index, refreshed
from tests.test_rule_pages import (
    Example,
    expectations,
    mismatches,
    torch_version,
    without_comments,
    without_prelude,
)

CODE = """\
scaler.scale(loss).backward()
clip_grad_norm_(model.parameters(), 1.0)  # noqa: F401  # AMP201: still multiplied | AMP216: read
"""
BEFORE = prelude(CODE).count("\n")
PAGE = """\
# AMP299 · some-name

A summary.

```toml
severity = "error"
fix = "none"
since = "0.1"
```
"""


def example() -> Example:
    page = catalog.parse(PAGE, Path("AMP299-some-name.md"))
    return Example(page, Block("bad", "python", CODE, 31))


def found(line: int, code: str, message: str) -> Finding:
    span = Span(BEFORE + line, 1, BEFORE + line, 5)
    return Finding(code, "some-name", Severity.ERROR, message, "page.py", span)


CLIP = found(2, "AMP201", "gradients are Still multiplied by the loss scale")
READ = found(2, "AMP216", "gradients are read")


def test_expectations_are_read_from_trailing_comments() -> None:
    assert expectations(CODE) == {2: [("AMP201", "still multiplied"), ("AMP216", "read")]}
    assert without_comments(CODE).endswith("1.0)  # noqa: F401\n")


def test_exactly_the_expected_findings_pass() -> None:
    assert mismatches(example(), [CLIP, READ]) == []


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ([CLIP], "AMP299-some-name.md:32: no AMP216 with the words 'read'"),
        ([CLIP, READ, READ], "AMP299-some-name.md:32: unexpected AMP216"),
        ([CLIP, READ, found(1, "AMP202", "x")], "AMP299-some-name.md:31: unexpected AMP202: x"),
        ([CLIP, READ, found(-2, "AMP202", "x")], "in the prelude: unexpected AMP202"),
        ([CLIP, found(2, "AMP216", "other")], "no AMP216 with the words 'read'; it says ['other']"),
    ],
)
def test_anything_else_fails_at_the_line_of_the_page(findings: list[Finding], words: str) -> None:
    [complaint] = mismatches(example(), findings)
    assert words in complaint


def test_a_line_that_a_fix_puts_into_the_prelude_is_seen() -> None:
    assert without_prelude("import torch\nimport math\nx = 1\nf(x)\n", "import torch\nx = 1\n") == "import math\nf(x)\n"


def test_a_page_bound_to_a_version_is_linted_at_that_version() -> None:
    assert torch_version(None) is None
    assert torch_version("<2.2") == (2, 1)
    assert torch_version(">=2.4") == (2, 4)


def test_the_index_lists_every_page_once() -> None:
    pages = [catalog.page(code) for code in catalog.codes()]
    table = index(pages)
    assert all(table.count(f"| [{page.code}]({page.file.name}) |") == 1 for page in pages)
    with pytest.raises(AssertionError, match="lost its markers"):
        refreshed("no markers", pages)
