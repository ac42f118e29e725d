"""Planted illnesses are found on the right layer, and healthy models have no finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amp_doctor.probe import Probe
from tests.probe.fixture_models import FILES, mismatches, run, title

if TYPE_CHECKING:
    from pathlib import Path

# Where a script asks for reduced precision, what calibration changes and what it does not is looked at separately.
REDUCED = [file for file in FILES if any(word in file.read_text() for word in ("GradScaler", "autocast("))]
CASES = [*((file, "auto") for file in FILES), *((file, "observe") for file in REDUCED)]


@pytest.mark.parametrize(("file", "mode"), CASES, ids=[f"{title(file)}-{mode}" for file, mode in CASES])
def test_findings(file: Path, mode: str) -> None:
    with Probe(steps=20, mode=mode, script=str(file)) as probe:
        run(file)
    assert probe.profile.notes == ()
    assert (probe.profile.steps.attempted, probe.profile.ended) == (20, "steps")
    assert mismatches(file, probe.findings) == []


def test_there_are_both_kinds() -> None:
    texts = [file.read_text() for file in FILES]
    silent = ["# expect: nothing" in text for text in texts]
    missed = ["# missed: " in text for text in texts]
    assert sum(silent) - sum(missed) >= 30
    assert len(texts) - sum(silent) >= 20
    assert sum(missed) <= 2
