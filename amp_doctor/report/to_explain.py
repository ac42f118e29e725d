"""Page -> what `amp-doctor explain` prints: the page itself, set as Markdown on a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.catalog import Page


def to_explain(page: Page, *, width: int = 100, color: bool = False) -> str:
    """The page in colour as rich sets it, or, where there is no terminal, its own Markdown."""
    text = readable(page)
    if not color:
        return text
    from io import StringIO

    from rich.console import Console
    from rich.markdown import Markdown

    file = StringIO()
    console = Console(
        file=file, width=width, force_terminal=True, color_system="standard", legacy_windows=False, _environ={}
    )
    console.print(Markdown(text, code_theme="ansi_dark"))
    return file.getvalue()


def readable(page: Page) -> str:
    """The page with its metadata in a sentence and the kinds of its blocks in words."""
    text = re.sub(r"```toml\n.*?```\n", lambda _: _facts(page) + "\n", page.text, count=1, flags=re.DOTALL)
    words = {
        "bad": "Wrong:",
        "fixed": "What the fix makes of it:",
        "good": "Right:",
        "missed": "Wrong, but not reported:",
    }
    text = re.sub(r"^```python (\w+)$", lambda m: f"{words.get(m[1], '')}\n\n```python", text, flags=re.MULTILINE)
    return text.rstrip() + f"\n\n{page.url}\n"


def _facts(page: Page) -> str:
    fixes = {"safe": "a safe fix (--fix)", "unsafe": "an unsafe fix (--fix --unsafe-fixes)", "none": "no automatic fix"}
    facts = [f"Severity **{page.severity}**", fixes[page.fix], f"since {page.since}"]
    if page.removed is not None:
        facts.append(f"removed in {page.removed}")
    if page.torch is not None:
        facts.append(f"for torch {page.torch}")
    if not page.default:
        facts.append(f"off by default (--extend-select {page.code})")
    return ", ".join(facts) + "."
