"""Source -> Module: parse with libcst, lower, and keep what is needed to turn node numbers into places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from amp_doctor.errors import ReadError
from amp_doctor.lint.machine import telling
from amp_doctor.lint.machine.slicing import Slicer
from amp_doctor.lint.project import STRIDE, Module
from amp_doctor.lint.syntax import SyntaxFault
from amp_doctor.lint.syntax.lower import lower
from amp_doctor.lint.syntax.places import Places
from amp_doctor.lint.syntax.prune import Pruned, prune

if TYPE_CHECKING:
    from amp_doctor.lint.source import Source

GENTLE = 40_000
"""Characters from which on a file is cut to what is telling; smaller ones lose only the branches that are not."""


def parse(source: Source, number: int, whole: bool = False) -> Module:
    """Parse and lower one file, large ones shortened unless `whole`. Raises SyntaxFault with the place."""
    tree, lines = _tree(source, whole)
    base = number * STRIDE
    lowered = lower(tree, base, number)
    slicer = Slicer(telling.relevant_functions(lowered.functions), gentle=len(source.code) < GENTLE)
    slicer.prepare(
        (function for function in lowered.functions if telling.rooted(function.words) or function.name == "__init__"),
        lowered.body,
    )
    return Module(
        path=source.path,
        file=source.file,
        code=source.code,
        number=number,
        body=lowered.body,
        functions=lowered.functions,
        classes=lowered.classes,
        references=lowered.references,
        uses=lowered.uses,
        words=lowered.words,
        slicer=slicer,
        places=Places(tree, source.code, base, lowered.nodes, lowered.parents, lines),
    )


LARGEST = 1_500_000
"""Characters that libcst is given at most: it takes about a gigabyte of memory for each million."""


def _bearable(code: str, path: str) -> str:
    if len(code) > LARGEST:
        size = f"{len(code) / 1e6:.1f} MB"
        raise ReadError(path, f"too large to analyse: {size} without the functions that do not matter; exclude it")
    return code


def _tree(source: Source, whole: bool) -> tuple[cst.Module, list[int] | None]:
    pruned = Pruned(source.code) if whole else prune(source.code)
    if pruned.lines is not None:
        try:
            return cst.parse_module(_bearable(pruned.code, source.path)), pruned.lines
        except cst.ParserSyntaxError:
            pass  # cut in the wrong place, or really broken: the whole text tells
    try:
        return cst.parse_module(_bearable(source.code, source.path)), None
    except cst.ParserSyntaxError as fault:
        message = fault.message.split("\n")[0].removeprefix("parser error: ")
        raise SyntaxFault(message, fault.editor_line, fault.editor_column) from None
