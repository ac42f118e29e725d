"""What the charts and tables of the HTML report are drawn from, as JSON values."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.profile import GRADIENTS, ROLES
from amp_doctor.diagnosis.trust import trusted
from amp_doctor.report.amounts import magnitude, scale
from amp_doctor.report.html_layers import (
    exponents,
    layers_values,
    limits_values,
    lost_curve,
    overflow_curve,
    parts,
    roles_values,
    total,
    worst_role,
)
from amp_doctor.report.html_text import number, numbered
from amp_doctor.report.profile_verdict import where
from amp_doctor.report.text import clean, source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Operator
    from amp_doctor.report.html_parts import Told


def page_values(told: Told) -> dict[str, Any]:
    """Everything, by the names that the scripts of the page know."""
    sheet, profile = told.sheet, told.sheet.profile
    accused = numbered((one.layer, index) for index, one in enumerate(sheet.findings) if one.layer is not None)
    beside = numbered((name, index) for index, one in enumerate(told.lint) for name in one.layers)
    interval = sheet.recommendation.loss_scale.admissible
    proof = sheet.recommendation.verified
    scales = exponents(sheet.scale_in_use, sheet.scale_advised)
    return {
        "layers": layers_values(profile, scales, beside, accused),
        "roles": roles_values(),
        "role": worst_role(profile),
        "limits": limits_values(),
        "findings": [[one.code, one.severity.value, clean(one.message)] for one in sheet.findings],
        "lint": [
            [
                one.finding.code,
                one.finding.severity.value,
                clean(one.finding.message),
                one.agreed.verdict if one.agreed else "",
            ]
            for one in told.lint
        ],
        "scales": {
            "used": number(sheet.scale_in_use or 0),
            "advised": number(sheet.scale_advised or 0),
            "admissible": list(interval) if interval else None,
            "drawn": number(sheet.scale_drawn),
            "largest": scales[-1],
        },
        "totals": [_totals(told, role, scales) for role in ROLES],
        "loss": _losses(profile.loss),
        "proof": [[clean(run.settings), _losses(run.loss)] for run in proof.runs] if proof else [],
        "scaler": [
            [one.step, number(one.scale), int(one.found_inf), clean(one.layer or ""), scale(one.scale)]
            for one in profile.scaler
        ],
        "operators": [_operator(one, told) for one in trusted(profile).operators],
    }


def _losses(losses: Sequence[float]) -> list[float | str]:
    return [value if isfinite(value) else str(value) for value in losses]


def _totals(told: Told, role: str, scales: range) -> list[list[int]] | None:
    """All gradients of one role together: lost and overflowing by loss scale."""
    counts = total(told.sheet.profile, role) if role in GRADIENTS else None
    if counts is None or not counts.nonzero:
        return None
    return [lost_curve(counts, scales), overflow_curve(counts, scales)]


def _operator(one: Operator, told: Told) -> list[Any]:
    """Name, layer, place, text of the line, trouble, precision, dtype, amax, lost, error, FLOPs, casts, phase."""
    line = source_line(told.sources, one.source.path, one.source.line) if one.source else ""
    return [
        clean(one.operator),
        clean(one.layer),
        where(one.source),
        clean(line),
        one.trouble,
        one.precision,
        one.dtype,
        [magnitude(one.amax), one.amax if isfinite(one.amax) else str(one.amax)],
        parts(one.lost),
        number(one.error),
        one.flops,
        one.casts,
        one.phase,
    ]
