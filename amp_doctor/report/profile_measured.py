"""What was measured, where and how; and the notes that the probe took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import UPDATE, WEIGHT
from amp_doctor.report.layout import bullets, labelled, paragraph, section
from amp_doctor.report.text import Line, counted

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Device, Precision
    from amp_doctor.report.sheet import Sheet

MODES = {
    "auto": "the first steps calibrated, then the script as written",
    "observe": "the script as written",
    "calibrate": "reduced precision taken away, to see what it would lose",
}


def notes_lines(sheet: Sheet) -> list[Line]:
    """What the probe could not see or had to leave out, in its own words."""
    return section("Notes", bullets(sheet.profile.notes, sheet.width, "warning"))


def measured_lines(sheet: Sheet, *, full: bool = False) -> list[Line]:
    """Mode, device, versions, precision of the script, and whether everything was counted.

    Where nothing was found, and all was counted, that is one paragraph; with `full` it is rows all the same.
    """
    profile, width = sheet.profile, sheet.width
    told: list[tuple[str, str]] = []

    def row(label: str, text: str) -> None:
        told.extend([(label, text)] if text else [])

    row("command", " ".join(profile.command) or profile.script)
    mode = f"{profile.mode}, {MODES[profile.mode]}" if profile.mode in MODES else profile.mode
    if profile.mode == "auto" and not profile.precision.calibrated:
        mode = "auto, nothing to calibrate: the script as written"
    row("mode", mode)
    row("device", _device_words(profile.device))
    row("torch", profile.torch)
    row("script", _precision_words(profile.precision))
    ranks = f", {counted(profile.ranks, 'rank')}" if profile.ranks > 1 else ""
    row("time", f"{profile.seconds:.1f} s{ranks}" if profile.seconds else ranks.removeprefix(", "))
    sites = [site for layer in profile.layers for site in (*layer.sites.values(), *layer.observed.values())]
    # Weights and their updates are looked at on some steps only, whatever was asked for.
    seen = [tallied for layer in profile.layers for tallied in (layer.sites, layer.observed)]
    sampled = any(site.sampled for tallied in seen for role, site in tallied.items() if role not in (WEIGHT, UPDATE))
    elements = sum(site.histogram.elements for site in sites)
    counts = f"{counted(len(profile.layers), 'layer')}, {elements:,} elements" if sites else ""
    row("counted", counts + (", a sample: shares are estimates" if sampled else ""))
    if sheet.healthy and not sampled and not full:
        brief = "; ".join(f"torch {text}" if label == "torch" else text for label, text in told)
        return section("What was measured", paragraph(brief, width))
    return section("What was measured", [line for one in told for line in labelled(*one, "", width, 8)])


def _device_words(device: Device) -> str:
    parts = [f"{device.kind} {device.name}".strip()] if device.kind or device.name else []
    parts += [f"capability {device.capability[0]}.{device.capability[1]}"] if device.capability else []
    if device.kind == "cuda" and not device.emulated:
        parts.append("native bfloat16" if device.native_bf16 else "no native bfloat16")
    return ", ".join([*parts, "emulated"] if device.emulated else parts)


def _precision_words(precision: Precision) -> str:
    """What the script itself asks for."""
    parts = [f"autocast to {' and '.join(precision.autocast)}" if precision.autocast else "no autocast"]
    parts.append("a GradScaler" if precision.scaler else "no GradScaler")
    parts += [f"weights in {' and '.join(precision.weights)}"] if precision.weights else []
    return ", ".join(parts)
