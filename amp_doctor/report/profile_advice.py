"""What the verdict costs and brings, the code to paste, what it rests on and what would overturn it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.memory import activations, computed
from amp_doctor.diagnosis.precision import HALF
from amp_doctor.diagnosis.trust import trusted
from amp_doctor.report.amounts import magnitude, share, size
from amp_doctor.report.layout import bullets, labelled, section
from amp_doctor.report.profile_replay import speed_up
from amp_doctor.report.profile_verdict import where
from amp_doctor.report.text import Line, clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.diagnosis.profile import Operator
    from amp_doctor.report.sheet import Sheet

OPERATORS = 5
# A relative error below this is what half precision is.
OFF = 0.02


def operators_lines(sheet: Sheet) -> list[Line]:
    """The torch calls outside the modules whose results leave a format, worst first."""
    out: list[Line] = []
    operators = trusted(sheet.profile).operators
    for one in operators[:OPERATORS]:
        words = ", ".join(part for part in (_trouble(one, sheet), one.layer, where(one.source)) if part)
        name = f"{one.operator}, backward" if one.phase == "backward" else one.operator
        out += labelled(name, words, "", sheet.width, max(len(clean(name)) + 1, 9))
    if len(operators) > OPERATORS:
        out.append([(f"  and {len(operators) - OPERATORS} more", "dim")])
    return section("Operators", out)


def _trouble(one: Operator, sheet: Sheet) -> str:
    parts = [f"{one.trouble} under {one.precision}" if one.precision else one.trouble]
    parts += [f"reaches {magnitude(one.amax)}"] if one.amax else []
    parts += [f"{share(one.lost)} lost"] if one.lost else []
    parts += [f"{share(one.error)} off"] if one.error >= OFF else []
    asked = {*sheet.profile.precision.autocast, *sheet.profile.precision.weights}
    # What the script never asked for only the replay has seen.
    foreign = one.dtype in HALF and one.dtype not in asked
    parts += [f"{one.dtype} in the replay" if foreign else f"seen in {one.dtype}"] if one.dtype else []
    return ", ".join(parts)


def cost_lines(sheet: Sheet, *, full: bool = False) -> list[Line]:
    """Memory per opt level as estimated, and what is expected of the speed; with `full` all that is known of both."""
    advice, width = sheet.recommendation, sheet.width
    out: list[Line] = []
    if advice.memory:
        out += labelled("memory", _levels(advice.memory), "", width, 7)
    if advice.memory and (full or not sheet.healthy) and (saved := activations(sheet.profile)):
        levels = computed(sheet.profile)
        how = (
            ("computed from the replayed step" if len(levels) == len(saved) else "partly computed")
            if levels
            else ("as usual for a model")
        )
        out += labelled("", f"of that activations {_levels(saved)} ({how})", "", width, 7)
    replay = sheet.profile.replay
    replayed = replay is not None and replay.recorded
    estimated = speed_up(sheet.profile, full=False) if replayed else ""
    if estimated and not full:
        # Of the assumptions it is enough to know where they are told.
        out += labelled("speed", estimated, "", width, 7)
    for label, text in advice.speed.items() if full or not estimated else ():
        # The estimate from a replayed step stands with the replay.
        if text and not (label == "replayed" and replayed):
            out += labelled({"expectation": "speed"}.get(label, label), text, "", width, 7)
    return section("Memory and speed (estimates)", [[(t.replace("\u00a0", " "), s) for t, s in line] for line in out])


def _levels(counts: Mapping[str, int]) -> str:
    return "   ".join(f"{level} {size(count)}".replace(" ", "\u00a0") for level, count in counts.items())


def snippet_lines(sheet: Sheet) -> list[Line]:
    """The code as it is, indented; never broken, so that it can be pasted."""
    lines = sheet.recommendation.snippet.rstrip().split("\n")
    return section("To paste", [[(f"  {clean(line)}", "fix")] for line in lines]) if any(lines) else []


def grounds_lines(sheet: Sheet) -> list[Line]:
    """All reasons but the first, which the verdict has told, and what would change it."""
    advice, width = sheet.recommendation, sheet.width
    return [
        *section("What the verdict rests on", bullets(advice.reasons[1:], width)),
        *section("What would change it", bullets(advice.would_change, width)),
    ]
