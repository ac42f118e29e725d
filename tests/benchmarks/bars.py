"""What the benchmarks of costs share: a ratio, the bar that it has to stay below, and the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio that is to stay at or below a limit."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.2f}, to be at most {self.limit:.2f}: {'holds' if self.holds else 'MISSED'}"


def ratio(some: Sequence[float], plain: Sequence[float]) -> float:
    """The median over the rounds of what was taken over what the plain step took in the same round."""
    return median(one / other for one, other in zip(some, plain, strict=True))


def parser(doc: str | None, rounds: int, models: Iterable[str] = ()) -> argparse.ArgumentParser:
    """`--rounds`, `--check`, and `--models` where there are some to choose from; the help begins with the docstring."""
    line = argparse.ArgumentParser(description=doc.partition("\n")[0] if doc else None)
    line.add_argument("--rounds", type=int, default=rounds)
    line.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    if names := list(models):
        line.add_argument("--models", nargs="*", default=names, choices=names)
    return line


def status(bars: Iterable[Bar], *, check: bool) -> int:
    """Of the process: 1 when `--check` is given and a bar is missed."""
    return int(check and not all(bar.holds for bar in bars))
