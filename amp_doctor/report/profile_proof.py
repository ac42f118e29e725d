"""What came of trying the recommendation: the verdict on the verdict, and the runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.report.amounts import magnitude, share
from amp_doctor.report.layout import beside, paragraph, section
from amp_doctor.report.text import Line, clean, counted

if TYPE_CHECKING:
    from amp_doctor.diagnosis.recommendation import Run, Verified
    from amp_doctor.report.sheet import Sheet

STYLES = {"verified": "good", "refuted": "error"}
HEADS = ("loss at the end", "skipped", "lost", "seconds")


def proof_lines(sheet: Sheet) -> list[Line]:
    """Nothing where nothing was tried."""
    proof = sheet.recommendation.verified
    if proof is None:
        return []
    out = paragraph(said(proof), sheet.width, 2, STYLES.get(proof.verdict, "warning"))
    out += paragraph(proof.reason, sheet.width)
    if proof.runs:
        out += _table(proof, sheet.width)
    return section("Proof", out)


def said(proof: Verified) -> str:
    """The verdict in a sentence."""
    tried = f" by a run of {counted(proof.steps, 'step')}" if proof.runs else ""
    if proof.instead:
        return f"Refuted{tried}, and revised to {proof.instead}."
    # Where nothing was run there is nothing to be sure or unsure of.
    return f"{proof.verdict.capitalize()}{tried}." if proof.runs else "Nothing was verified."


def rows_of(proof: Verified) -> list[tuple[str, ...]]:
    """Per run its settings, and a cell for each of HEADS."""
    return [(run.settings, *_cells(run)) for run in proof.runs]


def _cells(run: Run) -> tuple[str, ...]:
    last = "failed" if run.failure else magnitude(run.loss[-1]) if run.loss else "none seen"
    gone = share(run.lost) if run.lost is not None else "-"
    return last, str(run.skipped), gone, f"{run.seconds:.1f}"


def _table(proof: Verified, width: int) -> list[Line]:
    rooms = [max(len(head), *(len(cells[index + 1]) for cells in rows_of(proof))) for index, head in enumerate(HEADS)]
    room = sum(rooms) + 2 * len(rooms)

    def line(cells: tuple[str, ...]) -> str:
        return "".join(f"{cell:>{size}}  " for cell, size in zip(cells, rooms, strict=True))

    out: list[Line] = [[(f"  {line(HEADS)}run".rstrip(), "dim")]]
    for settings, *cells in rows_of(proof):
        out += beside(line(tuple(cells)), clean(settings), "", width, room)
    return out
