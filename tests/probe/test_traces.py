"""What a note says about an exception."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_doctor.probe.traces import summary


def raised(code: str, path: str = "train.py") -> Exception:
    try:
        exec(compile(code, path, "exec"), {"json": json})
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    pytest.fail("nothing was raised")


def test_the_place_is_in_the_users_code() -> None:
    error = raised("\n\njson.loads('{')")
    assert summary(error).startswith("JSONDecodeError: Expecting property name")
    assert summary(error).endswith("(train.py:3)")


def test_an_installed_program_has_only_installed_lines() -> None:
    installed = f"{Path(json.__file__).parent}/tool.py"
    assert summary(raised("1 / 0", installed)) == f"ZeroDivisionError: division by zero ({installed}:1)"


def test_one_plain_line() -> None:
    error = raised("raise ValueError('\\n\\x1b[1mdo\\x1b[0m   this:\\t\\x07first\\nand this')")
    assert summary(error) == "ValueError: do this: first (train.py:1)"
    assert summary(raised("assert not 1")) == "AssertionError (train.py:1)"
    assert summary(ValueError("x" * 300)) == f"ValueError: {'x' * 200}"
