"""The script for GPUs works as far as a machine without one can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.benchmarks import gpu_check

if TYPE_CHECKING:
    import pytest


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 0
    assert capsys.readouterr().out == "no GPU: torch.cuda.is_available() is false, so nothing was checked\n"


def test_on_a_cpu_a_part_of_it_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cpu", "--quick"]) == 0
    *verdicts, last = capsys.readouterr().out.splitlines()
    assert [line for line in verdicts if not line.startswith("ok   ")] == []
    assert {line[5:].partition(",")[0] for line in verdicts} >= {"reads back", "findings", "neutral"}
    assert last.startswith("0 failed, ")
    assert torch.get_default_device() == torch.device("cpu")


def test_when_the_time_is_up_the_rest_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cpu", "--quick", "--limit", "-1"]) == 0
    assert "left out for want of time" in capsys.readouterr().out


def test_a_check_that_raises_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = gpu_check.Verdicts("cpu", 60.0)

    def broken() -> list[str]:
        raise RuntimeError("on purpose\nand more")

    verdicts.check("broken", broken)
    verdicts.check("wrong", lambda: ["one", "two"])
    assert verdicts.close() == 1
    assert capsys.readouterr().out.startswith("FAIL broken: RuntimeError: on purpose\nFAIL wrong: one; two\n2 failed, ")
