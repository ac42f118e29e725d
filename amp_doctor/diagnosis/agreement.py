"""A finding of the linter against what a run of the same script has seen: confirmed, cleared, or nothing to say.

The run speaks only where it was in the state that the finding is about: a script whose `--half` was not given has shown
nothing about half weights, and a line that did not run has shown nothing at all. Paths of findings and of the profile
are taken to be told from the same directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.in_order import clipped, raised_here
from amp_doctor.diagnosis.operators import O1_FLOAT16, REFUSED, outcome
from amp_doctor.diagnosis.profile import ACTIVATION, GRADIENTS, UPDATE, WEIGHT
from amp_doctor.diagnosis.scene import CLEARED, CONFIRMED, Agreement, Scene
from amp_doctor.diagnosis.trust import trusted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amp_doctor.diagnosis.profile import Layer, OptimizerLog, Profile, Site
    from amp_doctor.finding import Finding

HALVES = ("float16", "bfloat16")
# Less than this share of updates rounded away is what training in float32 knows too.
GETS_THROUGH = 0.01
# Findings of the run about an operator, which stand at its line.
_ON_LINES = ("AMP605", "AMP617", "AMP618", "AMP619")
# A profile tells of so many operators at most.
TOLD = 20


def agreement(finding: Finding, profile: Profile, observed: Sequence[Finding], line: str = "") -> Agreement | None:
    """What the run says about a finding of the linter; None when it has no say."""
    if finding.cell is not None:
        return None
    look = LOOKS.get(finding.code)
    scene = Scene(finding, trusted(profile), observed, line)
    return raised_here(scene) or (look(scene) if look is not None else None)


def layers_beside(finding: Finding, profile: Profile, observed: Sequence[Finding], line: str = "") -> list[str]:
    """The layers that a finding of the linter may explain: called on its lines or its trail, or assigned there.

    So are those of operators on these lines, and those that the agreement rests on.
    """
    profile = trusted(profile)
    scene = Scene(finding, profile, observed, line)
    spans = [(finding.path, finding.span), *((step.path, step.span) for step in finding.related)]
    lines = {(path, number) for path, span in spans for number in range(span.line, span.end_line + 1)}
    found = {one.name for one in profile.layers if one.source and (one.source.path, one.source.line) in lines}
    found |= {one.layer for one in profile.operators if one.source and (one.source.path, one.source.line) in lines}
    found |= {one.name for one in scene.named()}
    agreed = agreement(finding, profile, observed, line)
    found |= set(agreed.layers) if agreed else set()
    return [layer.name for layer in profile.layers if layer.name in found]


def _by_code(*codes: str) -> Callable[[Scene], Agreement | None]:
    """Confirmed by any finding of the run that has one of the codes."""

    def look(scene: Scene) -> Agreement | None:
        met = scene.met(*codes)
        return _confirmed(met[0].message, met) if met else None

    return look


def _on_the_line(*troubles: str, settles: str = "") -> Callable[[Scene], Agreement | None]:
    """Confirmed by trouble of that kind with an operator on the very lines of the finding, or a NaN born of one there.

    Layers that are called on the line prove nothing: what they give is another matter than what the line computes.
    `settles` are the words that clear it where the line was replayed and nothing went wrong: what dtypes alone decide
    one step tells for good.
    """

    def look(scene: Scene) -> Agreement | None:
        for one in scene.profile.operators:
            # What would happen with all weights in half is no news about autocast.
            near = one.trouble in troubles and one.precision[:2] in ("", "O0", "O1")
            if near and one.source and scene.covers(one.source.path, one.source.line):
                under = f" under {one.precision}" if one.precision else ""
                ended = "" if one.precision or one.trouble not in REFUSED else ", and the run ended with it"
                words, codes = f"{one.operator} on this line: {one.trouble}{under}{ended}", scene.here(*_ON_LINES)
                return Agreement(CONFIRMED, words, codes, (one.layer,))
        first = scene.profile.first_nonfinite
        if first and first.operator and first.source and scene.covers(first.source.path, first.source.line):
            word = "NaN" if first.value == "nan" else "infinity"
            words = f"the first {word} of the run came from {first.operator} on this line"
            return Agreement(CONFIRMED, words, tuple(one.code for one in scene.met("AMP607")[:1]), (first.layer,))
        return Agreement(CLEARED, settles) if settles and _replayed(scene) else None

    return look


def _replayed(scene: Scene) -> bool:
    """Whether the step that was replayed under autocast came by the lines, and all that went wrong in it is known.

    In a step that ran in float32 a cast to float32 gives the tensor itself, and what is read later may be either.
    """
    profile = scene.profile
    if "float16" not in profile.precision.autocast or profile.precision.calibrated:
        return False
    if outcome(profile, O1_FLOAT16) is None or profile.replay is None or len(profile.operators) >= TOLD:
        return False
    return any(scene.covers(line.path, line.line) for line in profile.replay.lines)


def _confirmed(words: str, met: Sequence[Finding]) -> Agreement:
    layers = dict.fromkeys(one.layer for one in met if one.layer)
    return Agreement(CONFIRMED, words, tuple(dict.fromkeys(one.code for one in met)), tuple(layers))


def _float16_without_scaler(scene: Scene) -> Agreement | None:
    profile = scene.profile
    if "float16" not in profile.precision.autocast or profile.precision.scaler or not profile.steps.attempted:
        return None
    met = scene.met("AMP601", "AMP602", "AMP603")
    if met:
        return _confirmed(met[0].message, met)
    seen = [one.name for one in profile.layers if any(role in one.sites for role in GRADIENTS)]
    if not seen or _broken(profile):
        return None
    words = f"without a scaler no gradient was lost in the {len(seen)} layers and {profile.steps.attempted} steps seen"
    return Agreement(CLEARED, words)


def _scaler_without_autocast(scene: Scene) -> Agreement | None:
    precision = scene.profile.precision
    if met := scene.met("AMP615"):
        return _confirmed(met[0].message, met)
    if precision.scaler and "float16" in precision.autocast and len(scene.profile.optimizers) == 1:
        return Agreement(CLEARED, "the run entered autocast to float16 while its only optimizer was scaled")
    return None


def _half_norms(scene: Scene) -> Agreement | None:
    if met := scene.met("AMP612"):
        return _confirmed(met[0].message, met)
    norms = [one for one in scene.profile.layers if "BatchNorm" in one.type and one.buffers and one.sites]
    if "float16" not in scene.profile.precision.weights or not norms:
        return None
    if any(dtype in HALVES for one in norms for dtype in one.buffers.values()):
        return None
    words = f"the running statistics of all {len(norms)} norms are float32 beside weights in float16"
    return Agreement(CLEARED, words, (), tuple(one.name for one in norms))


def _broken(profile: Profile) -> bool:
    """Whether numbers of the run are those of NaN or infinities, which clear nothing."""
    return profile.first_nonfinite is not None


def _half_in(log: OptimizerLog) -> bool:
    return any(dtype in HALVES for dtype in log.dtypes)


def _refused_by_scaler(scene: Scene) -> Agreement | None:
    profile = scene.profile
    if not profile.precision.scaler or "float16" not in profile.precision.weights:
        return None
    if profile.ended == "exception" and not profile.steps.taken:
        return Agreement(CONFIRMED, "the script failed before its first step, with a scaler and weights in float16")
    if profile.scaler and any("float16" in log.dtypes and log.taken for log in profile.optimizers):
        return Agreement(CLEARED, f"{profile.steps.taken} steps were taken with a scaler over weights in float16")
    return None


def _eps(scene: Scene) -> Agreement | None:
    if met := scene.met("AMP611"):
        return _confirmed(met[0].message, met)
    logs = [log for log in scene.profile.optimizers if "float16" in log.dtypes]
    if logs and all(log.state_dtypes and "float16" not in log.state_dtypes for log in logs):
        return Agreement(CLEARED, "the optimizer of the float16 weights keeps its state, and adds its eps, in float32")
    return None


def _swallowed(scene: Scene) -> Agreement | None:
    if met := scene.met("AMP610"):
        return _confirmed(met[0].message, met)
    profile = scene.profile
    updates = [
        (one.sites[UPDATE], one.sites[WEIGHT].dtype)
        for one in profile.layers
        if UPDATE in one.sites and WEIGHT in one.sites and one.sites[WEIGHT].dtype in HALVES
    ]
    total = sum(site.histogram.nonzero for site, _ in updates)
    if not total or not any(_half_in(log) for log in profile.optimizers):
        return None
    lost = sum(site.swallowed.get(dtype, 0) for site, dtype in updates) / total
    if lost >= GETS_THROUGH or _broken(profile):
        return None
    return Agreement(CLEARED, f"the updates of the half weights get through in {profile.steps.taken} steps")


def _half_weights(scene: Scene) -> Agreement | None:
    half = [dtype for dtype in scene.profile.precision.weights if dtype in HALVES]
    return Agreement(CONFIRMED, f"weights in {' and '.join(half)} were trained") if half else None


def _stays_float(scene: Scene) -> Agreement | None:
    """`.float()` on a layer under autocast: what its output was."""
    profile = scene.profile
    outputs = {one.name: _as_written(one, profile) for one in profile.layers}
    if not any(site and site.dtype in HALVES for site in outputs.values()):
        return None  # autocast was not at work in this run
    sites = [(one.name, site) for one in scene.named() if (site := outputs[one.name]) is not None]
    half = [name for name, site in sites if site.dtype in HALVES]
    if half:
        dtype = next(site.dtype for _, site in sites if site.dtype in HALVES)
        return Agreement(CONFIRMED, f"{half[0]} gave {dtype}", (), tuple(half))
    if sites and all(site.dtype == "float32" for _, site in sites):
        return Agreement(CLEARED, f"{sites[0][0]} gave float32 while others gave half", (), tuple(n for n, _ in sites))
    return None


def _as_written(layer: Layer, profile: Profile) -> Site | None:
    """The outputs as the script is written: calibration widens autocast, so what it saw does not count."""
    return layer.observed.get(ACTIVATION) if profile.precision.calibrated else layer.sites.get(ACTIVATION)


_RAN = "this line was part of the replayed step, and under autocast to float16"
# Of these the operators speak that the run has seen to go wrong.
OPERATORS: dict[str, Callable[[Scene], Agreement | None]] = {
    "AMP305": _on_the_line("banned"),
    "AMP306": _on_the_line("banned"),
    "AMP308": _on_the_line("unsupported", "mixed"),
    "AMP501": _on_the_line("overflow", "mask", "unsupported", settles=f"{_RAN} no half tensor met the constant"),
    "AMP502": _on_the_line("underflow", "precision", settles=f"{_RAN} it was added to float32"),
    "AMP503": _on_the_line("overflow", "underflow", "precision", "accumulation"),
    "AMP504": _on_the_line("overflow", "precision", "accumulation"),
    "AMP505": _on_the_line("unsupported", "mixed"),
    "AMP506": _on_the_line("overflow", "precision", "accumulation"),
    "AMP507": _on_the_line("underflow", "precision"),
}
# Code of the linter -> how the run speaks about it; the run is silent on all others.
LOOKS: dict[str, Callable[[Scene], Agreement | None]] = {
    "AMP105": _half_weights,
    "AMP106": _by_code("AMP604", "AMP608", "AMP609"),
    "AMP201": clipped,
    "AMP206": _by_code("AMP608"),
    "AMP209": _float16_without_scaler,
    "AMP210": _by_code("AMP615"),
    "AMP239": _scaler_without_autocast,
    "AMP304": _half_weights,
    **OPERATORS,
    "AMP316": _stays_float,
    "AMP401": _half_norms,
    "AMP402": _refused_by_scaler,
    "AMP403": _eps,
    "AMP404": _swallowed,
    "AMP410": _float16_without_scaler,
    "AMP904": _by_code("AMP614"),
}
