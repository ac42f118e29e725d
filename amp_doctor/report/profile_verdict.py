"""What to use, in the first lines; before them whatever makes the measurement less than it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.outcomes import float16_fails
from amp_doctor.diagnosis.trust import trusted
from amp_doctor.report.amounts import scale
from amp_doctor.report.layout import labelled, paragraph
from amp_doctor.report.text import Line, clean, counted

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import FirstNonfinite, Source
    from amp_doctor.diagnosis.recommendation import LossScale
    from amp_doctor.report.sheet import Sheet

# Apex's words for opt levels, in today's.
LEVELS = {
    "O0": "everything in float32",
    "O1": "autocast",
    "O2": "half-precision weights with float32 master weights",
    "O3": "everything in half precision",
}
ENDS = {
    "": ("warning", "How the run ended is not recorded: it was cut off"),
    "finished": ("note", "The script finished by itself"),
    "time-limit": ("warning", "The time limit was reached"),
    "interrupted": ("warning", "The run was interrupted"),
    "exception": ("error", "The script failed with an exception"),
}
# Layers named in the verdict; the snippet and the JSON have all.
NAMED = 4


def reservations(sheet: Sheet) -> list[Line]:
    """Emulation, missing steps, an early end: said before the verdict that rests on them."""
    profile, width = sheet.profile, sheet.width
    out: list[Line] = []
    if profile.device.emulated:
        told = "Emulated: the script ran on a CPU under the autocast rules of CUDA; no GPU took part."
        if profile.device.why:
            told += f" It was started for its AMP, as {clean(profile.device.why)}; --dry-run off runs it plainly."
        out += paragraph(told, width, 0, "warning")
    steps = profile.steps
    if not steps.attempted:
        out += paragraph("No optimizer step was seen: what follows rests on no training step.", width, 0, "error")
    ended = profile.ended
    if ended != "steps" and (ended != "finished" or steps.attempted < steps.requested):
        style, words = ENDS.get(ended, ("warning", f"The run ended by {ended!r}"))
        when = f"after {counted(steps.attempted, 'step')} of {steps.requested}" if steps.attempted else "before a step"
        out += paragraph(f"{words}, {when}.", width, 0, style)
    return [*out, []] if out else []


def verdict(sheet: Sheet) -> list[Line]:
    """dtype, opt level, loss scale, layers in FP32, one reason, confidence, and the first NaN or infinity."""
    advice, width = sheet.recommendation, sheet.width
    level = LEVELS.get(advice.opt_level, advice.opt_level)
    scaled = " and a GradScaler" if advice.dtype == "float16" else ""
    words = f", opt level {advice.opt_level} ({level}{scaled})"
    out: list[Line] = [[("Verdict: ", "name"), (clean(advice.dtype), "good"), (clean(words), "")]]

    def row(label: str, text: str, style: str = "") -> None:
        out.extend(labelled(label, text, style, width, 11))

    raising = [one for one in advice.keep_fp32 if one.refused and advice.dtype != "float32"]
    for index, one in enumerate(raising[:NAMED]):
        told = f"{one.name}, which raises an error once autocast is on ({one.reason})"
        row("" if index else "change", told, "warning")
    if len(raising) > NAMED:
        out.append([(f"{'':14}and {counted(len(raising) - NAMED, 'more line')}, named in the snippet", "dim")])
    scaled, kept = _scale_words(advice.loss_scale), [one for one in advice.keep_fp32 if one not in raising]
    if advice.dtype == "float16":
        row("init_scale", scaled)
        label, words = "in float32", "{}: {}"
    else:
        row("init_scale", f"none, {advice.dtype} needs none")
        fails = float16_fails(trusted(sheet.profile), kept)
        row("float16?", "no, the replayed step does not come out right in it" if fails else f"init_scale {scaled}")
        label, words = "", "would need {} in float32: {}"
    for index, one in enumerate(kept[:NAMED]):
        row("" if index else label, words.format(one.name, one.reason))
    if len(kept) > NAMED:
        out.append([(f"{'':14}and {counted(len(kept) - NAMED, 'more layer')}, named in the snippet", "dim")])
    if advice.reasons:
        row("because", advice.reasons[0])
    if sheet.profile.first_nonfinite:
        row(*_first(sheet.profile.first_nonfinite), "error")
    row("confidence", advice.confidence)
    return [*out, []]


def _scale_words(told: LossScale) -> str:
    if told.admissible is None and not told.needed:
        return "not known, as no gradient was seen"
    if told.admissible is None:
        return "none: no scale keeps the small gradients without overflow of the large ones"
    low, high = (scale(end) for end in told.admissible)
    span = f"{low} to {high} are admissible" if low != high else f"{low} alone is admissible"
    start = scale(told.init_scale) if told.init_scale is not None else "not given"
    if told.needed:
        return f"{start}, and a scaler is needed; {span}"
    return f"{start}, though no scaler is needed: without one hardly anything is lost; {span}"


def _first(met: FirstNonfinite) -> tuple[str, str]:
    """`first nan` and where it was met."""
    when = f"step {met.step}" if met.step else "before the first step"
    parts = [when, met.phase, met.layer or "the whole model", met.operator or "", where(met.source)]
    return f"first {'NaN' if met.value == 'nan' else met.value}", ", ".join(part for part in parts if part)


def where(source: Source | None) -> str:
    """`train.py:12`, or nothing."""
    return f"{clean(source.path)}:{source.line}" if source else ""
