"""The layers that matter, worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amp_doctor.diagnosis.profile import ACTIVATION, GRADIENTS
from amp_doctor.report.amounts import share
from amp_doctor.report.layout import paragraph, section
from amp_doctor.report.profile_rows import LOST, LOST_PLAIN, Table, harm
from amp_doctor.report.text import Line, counted

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Layer
    from amp_doctor.report.sheet import Sheet

# As many layers as fit on a screen; where nothing is wrong three show what healthy looks like.
SHOWN, HEALTHY = 6, 3


@dataclass(frozen=True, slots=True)
class Judged:
    """A layer and why it is shown; they sort by it, the worst first."""

    layer: Layer
    accused: int
    first: bool
    kept: bool
    lost: float
    lost_drawn: float
    amax: float

    @property
    def matters(self) -> bool:
        """Whether there is anything to say about it beyond that it is well."""
        return bool(self.accused or self.first or self.kept) or self.lost_drawn >= LOST or self.lost >= LOST_PLAIN

    @property
    def rank(self) -> tuple[int, bool, bool, float, float, float]:
        """Findings weigh most, then where NaN was born, then layers for FP32, then what a cast of gradients loses."""
        return (self.accused, self.first, self.kept, round(self.lost_drawn, 2), self.lost, self.amax)


def layers_lines(sheet: Sheet) -> list[Line]:
    """The section with its axis; a sentence when no layer was seen at all."""
    layers = sheet.profile.layers
    if not layers:
        return section("Layers", [[("  none was seen: no module of torch.nn ran forward", "warning")]])
    judged = sorted((_judge(layer, sheet) for layer in layers), key=lambda one: one.rank, reverse=True)
    chosen = [one for one in judged if one.matters][:SHOWN]
    title = "Layers that matter, worst first" if chosen else "No layer stands out; those nearest to the limits"
    chosen = chosen or judged[:HEALTHY]
    table = Table.on(sheet)
    out = table.heading()
    for one in chosen:
        out += [[], *table.rows(one.layer)]
    if rest := judged[len(chosen) :]:
        out += [[], *_rest(rest, sheet.width)]
    return section(title, out)


def _judge(layer: Layer, sheet: Sheet) -> Judged:
    accused = max((f.severity.rank + 1 for f in sheet.findings if f.layer == layer.name), default=0)
    first = sheet.profile.first_nonfinite
    gradients = [layer.sites[role] for role in GRADIENTS if role in layer.sites]
    return Judged(
        layer,
        accused,
        first is not None and first.layer == layer.name,
        any(one.layer == layer.name for one in sheet.recommendation.keep_fp32),
        max(map(harm, gradients), default=0.0),
        max((harm(site, sheet.scale_drawn) for site in gradients), default=0.0),
        layer.sites[ACTIVATION].histogram.amax if ACTIVATION in layer.sites else 0.0,
    )


def _rest(rest: list[Judged], width: int) -> list[Line]:
    words = f"{counted(len(rest), 'layer is', 'layers are')} not shown"
    if trouble := sum(one.matters for one in rest):
        words += f", {trouble} of them for want of room"
    if any(role in one.layer.sites for one in rest for role in GRADIENTS):
        most = max(one.lost for one in rest)
        words += f"; {f'at most {share(most)}' if most else 'nothing'} of a gradient is lost there at scale 1"
    return paragraph(f"{words}.", width, style="dim")
