"""A diagnosed profile in the form that was asked for; what a form needs is loaded with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from amp_doctor.cli.diagnosed import Destination
    from amp_doctor.cli.linted import Linted
    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding
    from amp_doctor.report.joined import Joined


@dataclass(frozen=True, slots=True)
class Case:
    """What there is to tell: the profile, as it is and with its paths as they are shown, and all that came of it."""

    profile: Profile
    placed: Profile
    found: Sequence[Finding]
    advice: Recommendation
    lint: Linted | None
    merged: bool
    sources: Mapping[str, str]

    @property
    def joined(self) -> list[Joined]:
        """The findings of the linter, each with what the run says about it."""
        from amp_doctor.report.joined import joined

        return joined(self.lint.shown, self.placed, self.found, self.sources) if self.lint else []

    @property
    def counted(self) -> list[Finding]:
        """The findings of the linter that count for the exit status: the run has not cleared them."""
        return [one.finding for one in self.joined if not one.cleared] if self.merged else []


def in_form(style: str, case: Case, destination: Destination) -> str:
    """`style` is one of FORMATS."""
    match style:
        case "json":
            from amp_doctor.report.to_probe_json import to_probe_json

            lint = case.joined if case.merged else None
            return to_probe_json(case.profile, case.found, case.advice, lint, case.sources)
        case "html":
            from amp_doctor.report.to_html import to_html

            shown = case.lint.shown if case.lint else ()
            return to_html(case.placed, case.found, case.advice, lint=shown, sources=case.sources)
        case "sarif":
            return _sarif(case)
        case _:
            return _text(case, destination)


def preload_forms(styles: Set[str], merged: bool) -> None:
    """Load what these forms need."""
    if "json" in styles:
        from amp_doctor.report import to_probe_json  # noqa: F401
    if "html" in styles:
        from amp_doctor.report import page, to_html  # noqa: F401 - the files of the page are read later
    if "sarif" in styles:
        from amp_doctor.report import to_explain, to_sarif  # noqa: F401
    if "text" in styles:
        from amp_doctor.report import to_profile_text  # noqa: F401
    if merged:
        from amp_doctor.report import joined, to_text  # noqa: F401


def _sarif(case: Case) -> str:
    from amp_doctor import catalog
    from amp_doctor.lint.result import LintReport
    from amp_doctor.report.to_sarif import to_sarif

    lint = case.joined if case.merged else []
    found = (*case.found, *(one.told for one in lint))
    errors = case.lint.report.errors if case.lint and case.merged else ()
    codes = {finding.code for finding in found}
    return to_sarif(LintReport(found, errors), case.sources, {code: catalog.page(code) for code in codes})


def _text(case: Case, destination: Destination) -> str:
    from amp_doctor.report.to_profile_text import to_profile_text

    unicode = destination.output is not None or _can_draw(sys.stdout)
    width, color = destination.columns, destination.color
    text = to_profile_text(case.placed, case.found, case.advice, width=width, color=color, unicode=unicode)
    return source_text(case, destination) + "\n" + text if case.merged and case.lint else text


def source_text(case: Case, destination: Destination) -> str:
    """The findings of the linter, with what the run says about them."""
    from dataclasses import replace

    if case.lint is None:
        return ""
    from amp_doctor import catalog
    from amp_doctor.report.to_text import to_text

    told = replace(case.lint.report, findings=tuple(one.told for one in case.joined))
    summaries = {finding.code: catalog.summary(finding.code) for finding in told.findings}
    return to_text(told, case.sources, summaries, width=destination.columns, color=destination.color)


def _can_draw(stream: TextIO) -> bool:
    """Whether the blocks of a bar can be written there."""
    from amp_doctor.report.bars import BLOCKS

    try:
        BLOCKS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
