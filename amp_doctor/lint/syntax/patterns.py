"""`match` statements -> branches: each pattern becomes a test on the subject, and the names it captures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from amp_doctor.lint import trace as t

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.lint.syntax.lower import Lowering


def match(low: Lowering, node: cst.Match) -> None:
    """A `match` statement: the first case that fits, as a chain of branches."""
    subject = low.term(node.subject)

    def arm(cases: Sequence[cst.MatchCase]) -> None:
        if not cases:
            return
        case = cases[0]
        test, captures = _pattern(low, case.pattern, subject)

        def capture() -> None:
            for name, value in captures:
                target = t.Name(0, name)
                low.emit(t.Bind(low.at(case), target, value) if value else t.Forget(low.at(case), target))

        if case.guard is not None:
            capture()
            guard = low.test(case.guard)
            test = guard if test is None else t.Boolean(low.at(case), "and", (test, guard))

        def body() -> None:
            if case.guard is None:
                capture()
            for item in low.block(case.body).items:
                low.emit(item)

        then, _ = low.collect(body)
        if test is None:
            for item in then.items:
                low.emit(item)
            return
        other, _ = low.collect(lambda: arm(cases[1:]))
        low.emit(t.Branch(low.at(case), test, then, other))

    arm(node.cases)


def _pattern(
    low: Lowering, node: cst.MatchPattern, subject: t.Term
) -> tuple[t.Term | None, list[tuple[str, t.Term | None]]]:
    """The test that a pattern makes (None: always true), and the names it captures with the values known."""
    at = low.at(node)
    if isinstance(node, cst.MatchValue):
        return t.Compare(at, "==", subject, low.term(node.value)), []
    if isinstance(node, cst.MatchSingleton):
        return t.Compare(at, "is", subject, low.term(node.value)), []
    if isinstance(node, cst.MatchAs):
        test, captures = (None, []) if node.pattern is None else _pattern(low, node.pattern, subject)
        return test, captures if node.name is None else [*captures, (node.name.value, subject)]
    unknown: list[tuple[str, t.Term | None]] = [(name, None) for name in sorted(_captures(node))]
    if isinstance(node, cst.MatchOr):
        tests = [_pattern(low, part.pattern, subject)[0] for part in node.patterns]
        if all(test is not None for test in tests):
            return t.Boolean(at, "or", tuple(test for test in tests if test is not None)), unknown
    return t.Opaque(at, ()), unknown


def _captures(node: cst.CSTNode) -> set[str]:
    found = {node.name.value} if isinstance(node, cst.MatchAs | cst.MatchStar) and node.name is not None else set()
    if isinstance(node, cst.MatchMapping) and node.rest is not None:
        found.add(node.rest.value)
    for child in node.children:
        found |= _captures(child)
    return found
