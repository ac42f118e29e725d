"""The replay of one step: the precisions side by side, what a GPU might gain, and why there was none."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.hardware import UNMEASURED, estimate
from amp_doctor.diagnosis.operators import TOLERANCE
from amp_doctor.report.amounts import magnitude, scale, share, size
from amp_doctor.report.layout import beside, labelled, paragraph, section
from amp_doctor.report.text import Line, clean

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Outcome, Profile, Replay
    from amp_doctor.report.sheet import Sheet

HEADS = ("loss off", "gradients off", "overflows", "casts", "activations")
# Where a line is short, what the heads are told by.
SHORT = ("loss", "grad.", "over", "casts", "bytes")
PRECISION = "precision"
ROOMY = 84
LABEL = 13
WRITTEN = "O0/float16"
# Autocast, by its dtype.
MILD = {"O1/float16": "float16", "O1/bfloat16": "bfloat16"}
POINTER = "--output-format json or html tells what it assumes"


def replay_lines(sheet: Sheet) -> list[Line]:
    """Nothing where a profile is older than replays, or no step was made."""
    replay = sheet.profile.replay
    if replay is None:
        return []
    if not replay.recorded:
        return section("Replay of one step", paragraph(unrecorded(replay), sheet.width)) if replay.reason else []
    if sheet.healthy and as_in_float32(replay):
        return section("Replay of one step", paragraph(_well(replay), sheet.width))
    out = paragraph(INTRODUCTION, sheet.width, 2, "dim")
    out += _table(replay, sheet.width) if replay.outcomes else []
    for label, text, style in facts(replay):
        out += labelled(label, text, style, sheet.width, LABEL)
    return section("Replay of one step", out)


INTRODUCTION = "One recorded step, computed again by the rules of CUDA's autocast and set against FP32."


def unrecorded(replay: Replay) -> str:
    """Why there is no replay, as a sentence."""
    return f"No step was replayed: {clean(replay.reason).rstrip('.')}."


def rows_of(replay: Replay) -> list[tuple[str, ...]]:
    """Per precision its name and a cell for each of HEADS; FP32, where the step came out as it was, has no error."""
    full = replay.activations.get("O0")
    first: list[tuple[str, ...]] = [("O0/float32", "0", "0", "0", "0", size(full))] if full and replay.exact else []
    return first + [
        (
            f"{one.precision} (as written)" if one.precision == WRITTEN else one.precision,
            _off(one.loss_error),
            "-" if one.gradient_error is None else _off(one.gradient_error),
            str(one.overflows),
            str(one.casts),
            _bytes(replay, one),
        )
        for one in replay.outcomes
    ]


def as_in_float32(replay: Replay) -> bool:
    """Whether nothing is to be said about autocast in either dtype: the step comes out as it did in FP32."""
    mild = [one for one in replay.outcomes if one.precision in MILD]
    errors = [error for one in mild for error in (one.loss_error, one.gradient_error or 0.0)]
    overflows = any(one.overflows for one in mild)
    good = all(isfinite(error) and error <= TOLERANCE for error in errors)
    return bool(replay.exact and mild and good) and not (replay.keep or overflows)


def _well(replay: Replay) -> str:
    told = " and ".join(
        f"{MILD[one.precision]} is {_off(one.loss_error)} off in its loss"
        + (f" and {_off(one.gradient_error)} in its gradients" if one.gradient_error is not None else "")
        for one in replay.outcomes
        if one.precision in MILD
    )
    return f"One recorded step comes out under autocast as in FP32, which gave the same bits again: {told}."


def speed_up(profile: Profile, *, full: bool) -> str:
    """What a GPU might gain by autocast; its assumptions with `full`, else where they are told. Empty when unknown."""
    replay = profile.replay
    if replay is None or not replay.speed:
        return ""
    more = f": {clean(replay.assumptions)}" if full else f" ({POINTER})" if replay.assumptions else ""
    return f"{clean(estimate(profile))}; {UNMEASURED}{more}"


def facts(replay: Replay) -> list[tuple[str, str, str]]:
    """Label, text and style of what is known beside the table."""
    out: list[tuple[str, str, str]] = []
    if replay.exact is not None:
        words = "the same to the last bit as in the run" if replay.exact else "not as in the run: nothing rests on it"
        out.append(("in FP32", words, "good" if replay.exact else "warning"))
    scales = sorted({one.loss_scale for one in replay.outcomes if one.gradient_error is not None})
    if scales:
        out.append(("loss scale", f"gradients under {', '.join(map(scale, scales))}", ""))
    if replay.keep and replay.exact is not False:
        out.append(("keep in FP32", f"{', '.join(map(clean, replay.keep))} (found by trying)", "warning"))
    if replay.flops:
        out.append(("arithmetic", _arithmetic(replay), ""))
    return out


def _arithmetic(replay: Replay) -> str:
    shares = f"{share(replay.tensor_cores)} in half products, which Tensor Cores take"
    part = share(replay.aligned) if replay.aligned else "none"
    even = f", {part} of these in multiples of 8" if replay.tensor_cores else ""
    return f"{replay.flops:.3g} FLOPs forward, {shares}{even}"


def _off(error: float) -> str:
    return (
        share(error) if isfinite(error) and error < 1 else f"{magnitude(error)}x" if isfinite(error) else "not finite"
    )


def _bytes(replay: Replay, one: Outcome) -> str:
    count = replay.activations.get(one.precision[:2]) if one.precision != WRITTEN else None
    return size(count) if count else "-"


def _table(replay: Replay, width: int) -> list[Line]:
    told = rows_of(replay)
    heads = HEADS if width >= ROOMY else SHORT
    rooms = [max(len(head), *(len(cells[index + 1]) for cells in told)) for index, head in enumerate(heads)]
    room = sum(rooms) + 2 * len(rooms)

    def line(cells: tuple[str, ...]) -> str:
        return "".join(f"{cell:>{wide}}  " for cell, wide in zip(cells, rooms, strict=True))

    out: list[Line] = [[(f"  {line(heads)}{PRECISION}", "dim")]]
    for name, *cells in told:
        out += beside(line(tuple(cells)), clean(name), "", width, room)
    return out
