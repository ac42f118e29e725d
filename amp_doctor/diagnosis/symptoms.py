"""Profile -> findings of the family AMP6, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor import catalog
from amp_doctor.diagnosis.consequences import without_consequences
from amp_doctor.diagnosis.facts import facts
from amp_doctor.diagnosis.registry import Draft, symptoms, worst
from amp_doctor.finding import Finding, Span

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile, Source


def findings(profile: Profile) -> list[Finding]:
    """What is wrong, by severity, then by code, then worst layer first.

    A finding stands at the line that calls its layer where that is known, else at the first line of the script.
    """
    known = facts(profile)
    sources = {layer.name: layer.source for layer in profile.layers}
    drafts = without_consequences({code: list(look(known)) for code, look in symptoms().items()}, known)
    found = [
        _finding(code, draft, draft.source or sources.get(draft.layer or ""), profile.script)
        for code, ones in drafts.items()
        for draft in worst(ones)
    ]
    return sorted(found, key=lambda finding: (-finding.severity.rank, finding.code))


def _finding(code: str, draft: Draft, source: Source | None, script: str) -> Finding:
    line = source.line if source else 1
    return Finding(
        code=code,
        name=catalog.codes()[code],
        severity=catalog.severity(code),
        message=draft.message,
        path=source.path if source else script,
        span=Span(line, 1, line, 1),
        confidence=draft.confidence,
        layer=draft.layer,
    )
