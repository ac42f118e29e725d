"""Reading the pages: what is refused, with which words, and what is not read at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from amp_doctor import catalog
from amp_doctor.catalog import PageError
from amp_doctor.errors import SelectorError
from amp_doctor.finding import Severity
from tests.conftest import ROOT

FILE = Path("rules/AMP299-some-name.md")
PAGE = """\
# AMP299 · some-name

One summary,
on two lines.

```toml
severity = "warning"
fix      = "none"
since    = "0.1"
apis     = ["torch.amp.GradScaler"]
torch    = "<2.11"
```

## What goes wrong
```python bad
loss.backward()  # AMP299: words
step()
```
"""


def test_a_page_is_read() -> None:
    page = catalog.parse(PAGE, FILE)
    assert (page.code, page.name, page.summary) == ("AMP299", "some-name", "One summary, on two lines.")
    assert (page.severity, page.fix, page.torch, page.default) == (Severity.WARNING, "none", "<2.11", True)
    [block] = page.blocks
    assert (block.kind, block.language, block.code) == ("bad", "python", "loss.backward()  # AMP299: words\nstep()\n")
    assert PAGE.splitlines()[block.line - 1].startswith("loss.backward()")
    assert page.url.endswith("/rules/AMP299-some-name.md")


def test_opinions_are_off_by_default() -> None:
    page = catalog.parse(PAGE.replace("AMP299", "AMP999"), Path("AMP999-some-name.md"))
    assert not page.default


def test_a_tombstone_is_read() -> None:
    assert catalog.parse(PAGE.replace("torch    = ", 'removed = "0.4"\ntorch    = '), FILE).removed == "0.4"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("# AMP299 ·", "# AMP298 ·", 1, "the file name says AMP299-some-name"),
        ("# AMP299 · ", "## ", 1, "expected the heading"),
        ("One summary,\non two lines.\n", "", 2, "expected a summary"),
        ("```toml", "```python", 3, "expected a ```toml block"),
        ('"warning"', '"awful"', 7, "'awful' is none of error, warning, note"),
        ('"none"', '"maybe"', 7, "'maybe' is none of safe, unsafe, none"),
        ("since    =", "sinse    =", 7, "unknown key 'sinse'"),
        ('since    = "0.1"\n', "", 7, "'since' is missing"),
        ('since    = "0.1"', "since    = 0.1", 7, "'since' has the wrong type"),
        ('since    = "0.1"', "since    = ", 7, "not TOML"),
        ("step()\n```\n", "step()\n", 15, "never closed"),
        ("```python bad", "```python bad one", 15, "expected a fence"),
    ],
)
def test_a_broken_page_names_file_and_line(old: str, new: str, line: int, words: str) -> None:
    assert old in PAGE
    with pytest.raises(PageError) as error:
        catalog.parse(PAGE.replace(old, new, 1), FILE)
    assert str(error.value).startswith(f"{FILE}:{line}: ")
    assert words in str(error.value)


def test_a_rule_is_found_by_code_and_by_name() -> None:
    assert catalog.page("AMP201") is catalog.page("clip-before-unscale")
    assert catalog.code_of("amp201") == "AMP201"
    with pytest.raises(SelectorError, match="did you mean clip-before-unscale"):
        catalog.page("clip-befor-unscale")
    with pytest.raises(SelectorError, match="lists them"):
        catalog.page("?")


def test_summaries_need_no_metadata() -> None:
    for code in catalog.codes():
        assert catalog.summary(code) == catalog.page(code).summary
        assert catalog.severity(code) is catalog.page(code).severity


def test_names_need_no_page_and_no_toml_reader() -> None:
    code = (
        "import sys; from amp_doctor import catalog\n"
        "catalog.codes(), catalog.summary('AMP201'), catalog.url('AMP201')\n"
        "print('tomllib' in sys.modules); catalog.page('AMP201'); print('tomllib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
