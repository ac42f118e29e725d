"""Page -> the rule object of a SARIF log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amp_doctor.catalog import url
from amp_doctor.finding import Severity

if TYPE_CHECKING:
    from amp_doctor.catalog import Page

# GitHub cuts descriptions that are longer.
LONGEST = 1024
# Errors are reported only when the analyser saw the fault happen; opinions are opinions.
PRECISION = {Severity.ERROR: "very-high", Severity.WARNING: "high", Severity.NOTE: "medium"}
PROBLEM = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "recommendation"}


def sarif_rule(code: str, name: str, page: Page | None) -> dict[str, Any]:
    """The rule with its page as help; a code without a page (which a test forbids) is still a valid rule."""
    if page is None:
        text = {"text": name}
        return {"id": code, "name": name, "shortDescription": text, "fullDescription": text, "help": text}
    from amp_doctor.report.to_explain import readable

    help_text = readable(page)
    return {
        "id": code,
        "name": page.name,
        "shortDescription": {"text": page.summary[:LONGEST]},
        "fullDescription": {"text": _first_paragraph(page)[:LONGEST]},
        "helpUri": url(code),
        "help": {"text": help_text, "markdown": help_text},
        "defaultConfiguration": {"level": page.severity.value, "enabled": page.default},
        "properties": {
            "tags": ["pytorch", "mixed-precision", f"{code[:4]}"],
            "precision": PRECISION[page.severity] if page.default else "low",
            "problem.severity": PROBLEM[page.severity],
        },
    }


def _first_paragraph(page: Page) -> str:
    """The beginning of *What goes wrong*, or the summary."""
    found = re.search(r"^## What goes wrong\n+(.+?)(?:\n\n|\n```|\Z)", page.text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else page.summary
