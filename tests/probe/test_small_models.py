"""More planted illnesses and more healthy models than fixtures/models has, transformers' architectures among them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
import torch

from amp_doctor.probe import Probe
from tests.probe.small_architectures import ARCHITECTURES
from tests.probe.small_healthy import HEALTHY
from tests.probe.small_ill import ILL


def probed(trained: object, steps: int = 20) -> list[str]:
    torch.manual_seed(0)
    with Probe(steps=steps) as probe:
        trained()  # type: ignore[operator]
    assert probe.profile.notes == ()
    assert probe.profile.steps.attempted == steps
    return [f"{finding.code} {finding.layer or '-'}" for finding in probe.findings]


@pytest.mark.parametrize("name", ILL)
def test_an_illness_is_found_and_nothing_else(name: str) -> None:
    trained, expected = ILL[name]
    found = probed(trained)
    assert len(found) == len(expected), found
    assert [one for one in expected if not any(fnmatchcase(other, one) for other in found)] == [], found


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_has_no_finding(name: str) -> None:
    assert probed(HEALTHY[name]) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_with_random_weights_has_no_finding(name: str) -> None:
    assert probed(ARCHITECTURES[name], 12) == []
