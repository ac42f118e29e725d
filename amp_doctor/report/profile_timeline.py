"""The run in time: losses, loss scales, skipped steps; and the optimizers that made the steps."""

from __future__ import annotations

from itertools import groupby
from math import isfinite, log2, nan
from typing import TYPE_CHECKING

from amp_doctor.report.amounts import magnitude, scale
from amp_doctor.report.bars import sparkline
from amp_doctor.report.layout import labelled, section
from amp_doctor.report.text import Line, clean, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import OptimizerLog, ScalerEvent
    from amp_doctor.report.sheet import Sheet

LABEL = 9
# Steps named one by one; of more the count is enough.
NAMED = 8


def timeline_lines(sheet: Sheet) -> list[Line]:
    """Steps, loss, scale and skips, each in a line of its own where it was seen."""
    out = _steps(sheet)
    losses = sheet.profile.loss
    room = min(sheet.width - LABEL - 6, 60)
    if losses:
        out.append([_label("loss"), *sparkline(losses, room, sheet.glyphs)])
        out += _below(_loss_words(losses), sheet.width)
    events = sheet.profile.scaler
    if events:
        heights = [nan if event.found_inf else _height(event.scale) for event in events]
        out.append([_label("scale"), *sparkline(heights, room, sheet.glyphs)])
        out += _below(_scale_words(events), sheet.width)
    for log in sheet.profile.optimizers:
        out += labelled(fitting(log.name), _optimizer_words(log), "", sheet.width, LABEL)
    return section("Timeline", out)


def fitting(name: str) -> str:
    """The class of an optimizer without its module."""
    return clean(name).rpartition(".")[2] or "optimizer"


def _label(name: str) -> tuple[str, str]:
    return f"  {name + ':':{LABEL}} ", "dim"


def _height(value: float) -> float:
    return log2(value) if isfinite(value) and value > 0 else value


def _below(words: str, width: int) -> list[Line]:
    return [[("  " + " " * (LABEL + 1), ""), *line[1:]] for line in labelled("", words, "", width, LABEL)]


def _steps(sheet: Sheet) -> list[Line]:
    steps = sheet.profile.steps
    words = f"{steps.attempted} of {steps.requested} attempted, {steps.taken} taken, {steps.skipped} skipped"
    style = "" if steps.taken else "error"
    return labelled("steps", words, style, sheet.width, LABEL)


def _loss_words(losses: Sequence[float]) -> str:
    words = f"{magnitude(losses[0])} -> {magnitude(losses[-1])} over {counted(len(losses), 'value')}"
    first = next((index for index, loss in enumerate(losses, 1) if not isfinite(loss)), None)
    if first is None:
        return words
    bad = sum(not isfinite(loss) for loss in losses)
    return f"{words}; {bad} not finite (x NaN, ^ inf), the first is number {first}"


def _scale_words(events: Sequence[ScalerEvent]) -> str:
    runs = [(value, next(group).step) for value, group in groupby(events, key=lambda event: event.scale)]
    told = [f"{scale(value)} from step {step}" for value, step in runs]
    if len(told) > NAMED:
        told = [*told[: NAMED // 2], f"{len(told) - NAMED + 1} changes", *told[len(told) - NAMED // 2 + 1 :]]
    skipped = [event for event in events if event.found_inf]
    if not skipped:
        return ", ".join(told) + "; no infinity was met"
    steps = ", ".join(str(event.step) for event in skipped[:NAMED]) + (", ..." if len(skipped) > NAMED else "")
    places = sorted({event.layer for event in skipped if event.layer})
    seen = f"; infinities came first from {', '.join(clean(name) for name in places[:3])}" if places else ""
    return f"{', '.join(told)}; infinite gradients (x) at {counted(len(skipped), 'step')}: {steps}{seen}"


def _optimizer_words(log: OptimizerLog) -> str:
    parts = [f"{log.attempted} attempted, {log.taken} taken, {log.skipped} skipped"]
    parts += [f"lr {log.lr:g}"] if log.lr is not None else []
    parts += [f"eps {log.eps:g}"] if log.eps is not None else []
    parts += [f"{' and '.join(log.dtypes)} weights"] if log.dtypes else []
    parts += [f"{' and '.join(log.state_dtypes)} state"] if log.state_dtypes else []
    return ", ".join(parts)
