"""The `@symptom` decorator: one code, one function from facts to drafts; the worst few layers become findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.facts import Facts
from amp_doctor.diagnosis.words import count
from amp_doctor.finding import Confidence, Severity

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Source

# So many layers are named under one code; the last message counts the others.
MOST = 5


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding before its place is looked up; `badness` orders the drafts of one code, worst first.

    `severity` is another than that of the code, where this one is known to be worse.
    """

    layer: str | None
    message: str
    badness: float = 0.0
    confidence: Confidence = Confidence.HIGH
    source: Source | None = None
    severity: Severity | None = None


Symptom = Callable[[Facts], Iterable[Draft]]
_SYMPTOMS: dict[str, Symptom] = {}


def symptom(code: str) -> Callable[[Symptom], Symptom]:
    """Register the function that looks for one code."""

    def register(function: Symptom) -> Symptom:
        _SYMPTOMS[code] = function
        return function

    return register


def symptoms() -> dict[str, Symptom]:
    """Every symptom by its code, in the order of the codes."""
    from amp_doctor.diagnosis import arithmetic, fragile, machine, nonfinite, overflow, underflow, units  # noqa: F401

    return dict(sorted(_SYMPTOMS.items()))


def worst(drafts: Iterable[Draft]) -> list[Draft]:
    """The worst MOST drafts; how many more layers have the same is told by the last."""
    ordered = sorted(drafts, key=lambda draft: -draft.badness)
    shown, more = ordered[:MOST], len(ordered) - MOST
    if more > 0:
        shown[-1] = replace(shown[-1], message=f"{shown[-1].message} (and {count(more, 'more layer')} like it)")
    return shown
