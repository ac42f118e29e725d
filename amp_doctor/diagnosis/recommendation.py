"""What to use: the value that `recommend` makes of a profile, and its JSON (DESIGN section 6)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from amp_doctor.diagnosis.profile import Source
from amp_doctor.diagnosis.words import line_words

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LossScale:
    """Whether float16 needs a loss scale, the one to start with, and the powers of two that are admissible.

    `admissible` is None when no scale is: then `init_scale` is None too. `at_least` is the smallest scale that keeps
    the gradients that matter, 1.0 when none is needed.
    """

    needed: bool
    init_scale: float | None
    admissible: tuple[float, float] | None

    @property
    def at_least(self) -> float:
        """The lower end of the admissible interval; 1.0 when there is none."""
        return self.admissible[0] if self.admissible else 1.0


@dataclass(frozen=True, slots=True)
class KeepFP32:
    """A layer to leave out of float16 autocast, and why; or one operator in it, where `operator` and not `whole`.

    `operator` names the one that goes wrong, where a replayed step has told, and `source` its line. `refused`: CUDA's
    autocast raises an error there, which says nothing about float16.
    """

    layer: str
    reason: str
    operator: str = ""
    source: Source | None = None
    whole: bool = True
    refused: bool = False

    @property
    def name(self) -> str:
        """The layer, or the operator with its line and its layer; of a path the file is enough beside these."""
        if self.whole:
            return self.layer
        line = f" at {line_words(self.source)}" if self.source else ""
        return f"{self.operator}{line}{f', in {self.layer}' if self.layer else ''}"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a proof: `settings` in words, `loss` per step, attempts that were `skipped`, `seconds` on the clock.

    `lost` is the share of the gradients, non-zero in the FP32 run, that arrived as zero; None when they were not
    compared. `failure` is the last line that a run which failed has said, empty for any other.
    """

    settings: str
    loss: tuple[float, ...] = ()
    skipped: int = 0
    lost: float | None = None
    seconds: float = 0.0
    steps: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of trying a recommendation: verified, refuted or inconclusive, and in `reason` the numbers.

    `instead` is empty, or the dtype that took the place of a refuted one: the recommendation that holds this value is
    the revised one then, and `reason` tells of both.
    """

    verdict: str
    steps: int
    runs: tuple[Run, ...] = ()
    reason: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """dtype: float16, bfloat16 or float32. opt_level: O0 to O3, apex's words for what `snippet` says in today's API.

    `loss_scale` and `keep_fp32` are about float16, also when another dtype is recommended. `memory` maps each opt level
    to an estimate in bytes, `speed` holds words: `expectation` and its `reason`. `confidence` is high, medium or low;
    `reasons` say what the verdict rests on, `would_change` what would overturn it. `verified` is None until somebody
    has tried it.
    """

    dtype: str
    opt_level: str
    loss_scale: LossScale
    keep_fp32: tuple[KeepFP32, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    speed: Mapping[str, str] = field(default_factory=dict)
    confidence: str = "medium"
    reasons: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()
    snippet: str = ""
    verified: Verified | None = None


def to_values(recommendation: Recommendation) -> dict[str, Any]:
    """The recommendation as JSON values; `verified` stays null until somebody proves it."""
    values = asdict(recommendation)
    for run in values["verified"]["runs"] if values["verified"] else ():
        run["loss"] = [value if isfinite(value) else str(value) for value in run["loss"]]
    return values


def from_values(values: dict[str, Any]) -> Recommendation:
    """The recommendation that JSON values stand for; KeyError, TypeError or ValueError when they are broken."""
    scale, proof = values["loss_scale"], values["verified"]
    ends = scale["admissible"]
    return Recommendation(
        **{
            **values,
            "loss_scale": LossScale(**{**scale, "admissible": tuple(ends) if ends else None}),
            "keep_fp32": tuple(map(_kept, values["keep_fp32"])),
            "reasons": tuple(values["reasons"]),
            "would_change": tuple(values["would_change"]),
            "verified": Verified(**{**proof, "runs": tuple(map(_run, proof["runs"]))}) if proof else None,
        }
    )


def _kept(values: dict[str, Any]) -> KeepFP32:
    source = values.get("source")
    return KeepFP32(**{**values, "source": Source(**source) if source else None})


def _run(values: dict[str, Any]) -> Run:
    return Run(**{**values, "loss": tuple(map(float, values["loss"]))})
