"""The `@check` decorator, and the Moment a check is shown: one event on one path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from amp_doctor.finding import Applicability, Confidence, Edit, Fix
from amp_doctor.lint.assume import decide
from amp_doctor.lint.machine.tensors import active_region
from amp_doctor.lint.project import STRIDE, Module
from amp_doctor.lint.syntax.names import Reference

if TYPE_CHECKING:
    from amp_doctor.lint.events import Event
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.objects import Object, Value
    from amp_doctor.lint.state import Region, State

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Finished:
    """The file has been read to its end; `log` holds every event in the order met."""

    log: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding before its places are looked up: `at` and the trail are node numbers."""

    code: str
    message: str
    at: int
    trail: tuple[tuple[int, str], ...] = ()
    fix: Fix | None = None
    confidence: Confidence = Confidence.HIGH


@dataclass(slots=True, eq=False)
class Moment(Generic[E]):
    """An event, the state before it, and the means to report it."""

    event: E
    state: State
    interpreter: Interpreter
    code: str

    @property
    def module(self) -> Module:
        """The module that is being linted."""
        return self.interpreter.module

    @property
    def torch_version(self) -> tuple[int, ...] | None:
        """The torch release the code is for, None when the configuration does not say."""
        return self.interpreter.torch_version

    def decide(self, value: Value | None) -> bool | None:
        """The truth of a value on this path, None when it is not known."""
        return None if value is None else decide(value, self.state.known)

    def region(self) -> Region | None:
        """The autocast region in force (None: none, or surely disabled)."""
        return active_region(self.state)

    def enabled(self, scaler: Object) -> bool | None:
        """Whether a scaler is on, None when this path cannot tell."""
        return self.decide(scaler.fact("enabled"))

    def home(self, at: int) -> Module:
        """The module a node belongs to."""
        number = at // STRIDE
        return self.interpreter.owners.get(number, self.interpreter.module)

    def text(self, at: int) -> str:
        """The source text of a node."""
        text: str = self.home(at).places.text(at)
        return text

    def finding(
        self,
        message: str,
        *,
        at: int | None = None,
        trail: Iterable[tuple[int, str]] = (),
        fix: Fix | None = None,
        confidence: Confidence = Confidence.HIGH,
    ) -> Draft:
        """A finding at the event (or at another node), with the steps that led there."""
        place = at if at is not None else self.event.at  # type: ignore[attr-defined]
        steps = tuple((step, words) for step, words in trail if step)
        return Draft(self.code, message, place, steps, fix, confidence)

    def fix(self, message: str, applicability: Applicability, *edits: Edit | None) -> Fix | None:
        """A fix of these edits, or None when one of them could not be made."""
        made = tuple(edit for edit in edits if edit is not None)
        return Fix(applicability, message, made) if made and len(made) == len(edits) else None

    def replace(self, at: int, text: str) -> Edit | None:
        """Replace a node's text."""
        if not self._here(at):
            return None
        start, end = self.module.places.bytes_of(at)
        return Edit(start, end, text)

    def insert_before(self, at: int, line: str) -> Edit | None:
        """Put a line of its own before the statement of a node, at its indentation."""
        if not self._here(at) or not self.module.places.alone(at):
            return None
        first, _, indent = self.module.places.line_span(at)
        return Edit(first, first, f"{indent}{line}{self.module.places.newline()}") if not indent.strip() else None

    def insert_after(self, at: int, line: str) -> Edit | None:
        """Put a line of its own after the statement of a node, at its indentation."""
        if not self._here(at) or not self.module.places.alone(at):
            return None
        _, last, indent = self.module.places.line_span(at)
        newline = self.module.places.newline()
        if indent.strip():
            return None
        at_end = not self.module.places.raw[:last].endswith(b"\n")
        return Edit(last, last, f"{newline if at_end else ''}{indent}{line}{newline}")

    def delete_line(self, at: int) -> Edit | None:
        """Delete the whole statement of a node, with the comment on its line."""
        places = self.module.places
        if not self._here(at) or not places.alone(at):
            return None
        first, last, indent = places.line_span(at)
        return Edit(first, last, "") if not indent.strip() else None

    def _here(self, at: int) -> bool:
        return self.home(at) is self.module


Check = Callable[[Moment[Any]], Iterator[Draft]]
_CHECKS: dict[type, list[tuple[str, Check]]] = {}
_CODES: set[str] = set()


def check(code: str, *, on: type | tuple[type, ...]) -> Callable[[Check], Check]:
    """Register a check for one rule on the event types it listens to."""

    def register(function: Check) -> Check:
        _CODES.add(code)
        for kind in on if isinstance(on, tuple) else (on,):
            _CHECKS.setdefault(kind, []).append((code, function))
        return function

    return register


def checks_on(kind: type) -> list[tuple[str, Check]]:
    return _CHECKS.get(kind, [])


def codes() -> set[str]:
    """The codes that checks can emit (those of AMP0 belong to the runner)."""
    load()
    return set(_CODES)


def load() -> None:
    """Import every family, which registers its checks."""
    from amp_doctor.lint.checks import (  # noqa: F401
        accumulation,
        activations,
        autocast,
        backward,
        casting,
        checkpoints,
        clipping,
        construction,
        contexts,
        deprecated,
        functions,
        operators,
        opinions,
        penalties,
        reductions,
        regions,
        scaler,
        steps,
        updates,
    )


__all__ = ["Check", "Draft", "Finished", "Moment", "Reference", "check", "checks_on", "codes", "load"]
