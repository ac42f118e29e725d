"""Pages -> the list that `amp-doctor rules` prints, as a table or as JSON."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import TYPE_CHECKING

from amp_doctor.report.text import Line, rendered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.catalog import Page


def rules_text(pages: Iterable[Page], *, width: int = 100, color: bool = False) -> str:
    """One rule per entry: code, severity, fix, name, and its summary below."""
    out: list[Line] = []
    for page in pages:
        fix = "" if page.fix == "none" else f"  [{page.fix} fix]"
        off = "" if page.default else "  [off by default]"
        gone = "" if page.removed is None else f"  [removed in {page.removed}]"
        severity = page.severity.value
        out.append([(f"{page.code}  ", "code"), (f"{severity:<7}", severity), (f"  {page.name}", "name")])
        out[-1] += [(fix, "fix"), (off, "dim"), (gone, "dim")]
        out += [[("  " + part, "dim")] for part in wrap(page.summary, max(width - 2, 20))]
    return rendered(out, width, color)


def rules_json(pages: Iterable[Page]) -> str:
    """A list of objects with the metadata of each page."""
    rules = [
        {
            "code": page.code,
            "name": page.name,
            "summary": page.summary,
            "severity": page.severity.value,
            "fix": page.fix,
            "since": page.since,
            "removed": page.removed,
            "apis": list(page.apis),
            "torch": page.torch,
            "default": page.default,
            "url": page.url,
        }
        for page in pages
    ]
    return json.dumps(rules, indent=2, ensure_ascii=False) + "\n"
