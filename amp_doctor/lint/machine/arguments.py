"""The arguments of a call, by position or keyword, and the result of a call nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.lint.machine import evaluate, tensors
from amp_doctor.lint.objects import (
    Tensor,
    Value,
)

if TYPE_CHECKING:
    from amp_doctor.lint.events import (
        Args,
    )
    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


def positional(args: Args) -> list[Value]:
    """The arguments given by position."""
    return [value for key, value in args if key is None]


def argument(args: Args, position: int | None, keyword: str) -> Value | None:
    """The argument given under this keyword, else the one at this position, else None."""
    for key, value in args:
        if key == keyword:
            return value
    plain = positional(args)
    return plain[position] if position is not None and position < len(plain) else None


def opaque(m: Interpreter, at: int, args: Args, state: State, name: str = "") -> Value:
    """The result of a call nobody knows: a tensor when tensors went in, else a fresh symbol."""
    inputs = tensors.tensors_in([value for _, value in args])
    if inputs:
        base = tensors.merged(inputs)
        return Tensor(None, False, None, base.sources, base.tags | {"unseen"}, at)
    return evaluate.fresh(m, f"call@{at}", name, state)
