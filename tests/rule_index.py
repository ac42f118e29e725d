"""The generated parts of rules/README.md: the prelude and the index, each between its two markers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.prelude import PRELUDE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.catalog import Page

FAMILIES = {
    "AMP0": "The tool itself",
    "AMP1": "Construction, spelling, deprecations",
    "AMP2": "Gradient scaling",
    "AMP3": "Autocast regions",
    "AMP4": "Casts, parameters, optimizers",
    "AMP5": "Fragile operators",
    "AMP6": "Observed by the probe",
    "AMP7": "Frameworks",
    "AMP9": "Opt-in opinions",
}


def refreshed(text: str, pages: Iterable[Page]) -> str:
    """`text` with both generated parts written anew."""
    names = "\n".join(f"# {name}\n{code}" for name, code in PRELUDE.items())
    return _between(_between(text, "prelude", f"```python\n{names}\n```"), "index", index(pages))


def index(pages: Iterable[Page]) -> str:
    """One table per family: code, name, what it says, severity, fix."""
    known = list(pages)
    parts = []
    for family, title in FAMILIES.items():
        rows = [
            f"| [{p.code}]({p.file.name}) | `{p.name}` | {p.summary} | {p.severity} | {p.fix} |"
            for p in known
            if p.code.startswith(family)
        ]
        if rows:
            parts.append(f"### {family} · {title}\n\n| code | name | | severity | fix |\n|---|---|---|---|---|")
            parts[-1] += "\n" + "\n".join(rows)
    return "\n\n".join(parts)


def _between(text: str, marker: str, inside: str) -> str:
    begin, end = f"<!-- {marker}: generated -->", f"<!-- {marker}: end -->"
    pattern = re.compile(rf"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert pattern.search(text), f"rules/README.md has lost its markers {begin} ... {end}"
    return pattern.sub(lambda _: f"{begin}\n{inside}\n{end}", text)
