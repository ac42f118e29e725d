"""Profile, findings and recommendation -> one HTML file that needs no network: the report to look at and to send on.

What is read stands in the page as text; what is moved, sorted and hovered is drawn by plotly from numbers that are
embedded as JSON. The Content-Security-Policy of the page names its scripts by their hashes and allows nothing else.

The library is plotly's own bundle for charts on plain axes, as published (`make plotly` brings the newest): whole, it
is three times as large, and reading it takes a browser longer than everything else on the page together.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from amp_doctor import __version__
from amp_doctor.report.html_parts import Told, parts
from amp_doctor.report.html_text import embedded, tag, words
from amp_doctor.report.html_values import page_values
from amp_doctor.report.joined import joined
from amp_doctor.report.sheet import Sheet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding

LIBRARY = "plotly-cartesian.min.js"
SCRIPTS = ("core.js", "table.js", "layers.js", "curves.js", "timeline.js", "start.js")
# No line of text is broken here: that is the browser's business.
UNBROKEN = 1_000_000


def to_html(
    profile: Profile,
    findings: Sequence[Finding],
    recommendation: Recommendation,
    *,
    lint: Sequence[Finding] = (),
    sources: Mapping[str, str] | None = None,
) -> str:
    """The page. `lint` is what the linter found in the same script, `sources` the texts of files, by path."""
    texts = sources or {}
    sheet = Sheet(profile, findings, recommendation, UNBROKEN)
    told = Told(sheet, joined(lint, profile, findings, texts), texts)
    body = parts(told)
    library, program = plotly(), _program()
    style = _asset("style.css")
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(program)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = words(f"{profile.script or 'a run'} - AMP Doctor")
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="amp-doctor {__version__}">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{style}</style>'
    )
    numbers = tag("script", embedded(page_values(told)), type="application/json", id="values")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}\n{numbers}\n'
        f"{tag('script', library, type='text/plain', id='library')}\n<script>{program}</script>\n</body></html>\n"
    )


def plotly() -> str:
    """The source of plotly.js."""
    # In a string of JavaScript the two are the same, and in HTML the first ends the script.
    return _asset(LIBRARY).replace("</script", "<\\/script")


def _program() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"


def _asset(name: str) -> str:
    """A file of this package: as constant as a string in this module, and easier to read where it is."""
    return files("amp_doctor.report.page").joinpath(name).read_text("utf-8")


def _hash(script: str) -> str:
    """As a Content-Security-Policy names the script that may run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
