"""Profile -> findings of the family AMP6, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor import catalog
from amp_doctor.diagnosis.consequences import without_consequences
from amp_doctor.diagnosis.facts import facts
from amp_doctor.diagnosis.profile import BACKWARD, STEP
from amp_doctor.diagnosis.registry import Draft, symptoms, worst
from amp_doctor.finding import NOWHERE, Finding, Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.diagnosis.profile import Profile, Source


# What is wrong with the optimizer or the scaler stands where they step, what is wrong with the machine nowhere.
_PLACES = {**dict.fromkeys(("AMP604", "AMP608", "AMP609", "AMP610", "AMP611", "AMP615", "AMP616"), STEP), "AMP614": ""}


def findings(profile: Profile) -> list[Finding]:
    """What is wrong, by severity, then by code, then worst layer first.

    A finding stands at the line that calls its layer, or a layer around it, where that is known; one about the whole
    run where the optimizer steps or the backward pass starts; else at none.
    """
    known = facts(profile)
    sources = {layer.name: layer.source for layer in profile.layers}
    drafts = without_consequences({code: list(look(known)) for code, look in symptoms().items()}, known)
    found = [
        _finding(
            code,
            draft,
            draft.source or _source(draft.layer or "", sources) or profile.places.get(_PLACES.get(code, BACKWARD)),
            profile.script,
        )
        for code, ones in drafts.items()
        for draft in worst(ones)
    ]
    return sorted(found, key=lambda finding: (-finding.severity.rank, finding.code))


def _source(layer: str, sources: Mapping[str, Source | None]) -> Source | None:
    while layer:
        if (found := sources.get(layer)) is not None:
            return found
        layer = layer.rpartition(".")[0]
    return None


def _finding(code: str, draft: Draft, source: Source | None, script: str) -> Finding:
    return Finding(
        code=code,
        name=catalog.codes()[code],
        severity=draft.severity or catalog.severity(code),
        message=draft.message,
        path=source.path if source else script,
        span=Span(source.line, 1, source.line, 1) if source else NOWHERE,
        confidence=draft.confidence,
        layer=draft.layer,
    )
