"""What a run says about the order in which a GradScaler is used: scale, unscale_, clip, step, update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import CLIPPED
from amp_doctor.diagnosis.raised import foretelling, raised
from amp_doctor.diagnosis.scene import CONFIRMED, Agreement
from amp_doctor.diagnosis.words import line_words, scale_words

if TYPE_CHECKING:
    from amp_doctor.diagnosis.scene import Scene


def raised_here(scene: Scene) -> Agreement | None:
    """Confirmed by an error of the scaler that the finding foretells, raised on its lines or those that it leads to."""
    met = raised(scene.profile)
    if met is None or scene.finding.code not in foretelling(met[0]):
        return None
    error, at = met
    trail = any(
        step.path == at.path and step.span.line <= at.line <= step.span.end_line for step in scene.finding.related
    )
    if not trail and not scene.covers(at.path, at.line):
        return None
    return Agreement(CONFIRMED, f"the run ended on {line_words(at)} with {error.rstrip('.')}")


def clipped(scene: Scene) -> Agreement | None:
    """Gradients that were clipped before the scaler divided them by its scale, while that was in force."""
    profile, at = scene.profile, scene.profile.places.get(CLIPPED)
    if at is None or not scene.covers(at.path, at.line):
        return None
    scale = f", {scale_words(profile.scaler[0].scale)}" if profile.scaler else ""
    words = f"gradients were clipped on this line while they were multiplied by the loss scale{scale}"
    return Agreement(CONFIRMED, words)
