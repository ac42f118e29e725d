"""Weights and what a step adds to them: size, and the share that rounding to a half format swallows.

A bfloat16 weight of 1 ignores an update of 1/256; a float16 one ignores 1/2048. Both are decided exactly: the weight is
rounded to the format, the update added, the sum rounded again. Steps 1, 2, 5 and every tenth are looked at; of a large
parameter every n-th element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from amp_doctor.diagnosis.profile import UPDATE, WEIGHT, OptimizerLog, Site
from amp_doctor.probe.count import Tally, countable
from amp_doctor.probe.dtypes import LOW, dtype_name
from amp_doctor.probe.float_bits import flat

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from amp_doctor.probe.device_count import DeviceTally
    from amp_doctor.probe.session import Session
    from amp_doctor.probe.steps import Attempts

_EARLY = (1, 2, 5)
_EVERY = 10
# Elements of a parameter that are looked at; an odd stride, so that it does not follow a row.
_ENOUGH = 1 << 18
# State that `eps` is added to, by the names torch.optim gives it.
_SECOND = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum", "acc_delta")


class Weights:
    """Remembers parts of the parameters from before a step to after it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: list[tuple[Tensor, Tensor]] = []

    @property
    def due(self) -> bool:
        """Whether the step under way is one of those that are looked at."""
        step = self._session.step + 1
        return self._session.counting and not self._session.trial and (step in _EARLY or step % _EVERY == 0)

    def count_all(self, model: nn.Module) -> None:
        """Count the weights of a model as it starts."""
        for parameter in model.parameters():
            self._count(parameter, "weight")

    def before(self, optimizer: Optimizer) -> None:
        """Keep what the parameters of an optimizer are before its step."""
        self._before = []
        self._session.gradients.hook(p for group in optimizer.param_groups for p in group["params"])
        if self.due:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        values = countable(parameter)
                        if values is not None and parameter.requires_grad:
                            self._before.append((parameter, part(values).clone()))

    def forget(self) -> None:
        """The step was skipped."""
        self._before = []

    def after(self) -> None:
        """Count the weights and what was added to them."""
        kept, self._before = self._before, []
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for parameter, old in kept:
                values = countable(parameter)
                record = self._session.names.owner(parameter)
                if values is not None and self._session.wanted(record):
                    self._count(parameter, "optimizer")
                    new = part(values)
                    sampled = new.numel() < values.numel()
                    self._update(
                        parameter, old, new, self._session.sites.tally(record, UPDATE, new.device, sampled=sampled)
                    )

    def _count(self, parameter: Tensor, phase: str) -> None:
        record = self._session.names.owner(parameter)
        values = countable(parameter)
        if values is not None and self._session.wanted(record):
            self._session.sites.add(record, WEIGHT, values, phase)

    def _update(self, parameter: Tensor, old: Tensor, new: Tensor, tally: Tally | DeviceTally) -> None:
        moved = new.double() - old.double() if new.dtype is torch.float64 else new.float() - old.float()
        tally.add(moved)
        for half in LOW:
            name = dtype_name(half)
            if new.dtype is half:
                # Too late to see the update itself: a gradient that moved nothing tells.
                gradient = countable(parameter.grad)
                wanted = part(gradient) != 0 if gradient is not None else torch.zeros_like(moved, dtype=torch.bool)
                swallowed = (wanted & (moved == 0)).sum()
            elif new.dtype in LOW:
                continue
            else:
                weight = old.to(half)
                still = (weight.to(moved.dtype) + moved).to(half) == weight
                swallowed = (still & (moved != 0)).sum()
            # Kept as a tensor: on a GPU nothing is read back before the end.
            tally.swallowed[name] = tally.swallowed.get(name, 0) + swallowed


def part(values: Tensor) -> Tensor:
    """All elements of a tensor in one dimension, or every n-th of a large one."""
    values = flat(values)
    if values.numel() <= _ENOUGH:
        return values
    stride = values.numel() // _ENOUGH | 1
    return values[::stride]


def optimizer_log(attempts: Attempts) -> OptimizerLog:
    """What the optimizer's arithmetic rests on, read from its groups and its state at the end."""
    optimizer = attempts.optimizer
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if isinstance(p, Tensor)]
    states = [value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()]
    tensors = [value for value in states if isinstance(value, Tensor) and value.is_floating_point() and value.dim()]
    second = Tally()
    for state in optimizer.state.values():
        found = next((state[name] for name in _SECOND if name in state), None) if isinstance(state, dict) else None
        values = countable(found)
        if values is not None:
            second.add(values)
    first = groups[0] if groups else {}
    return OptimizerLog(
        attempts.name,
        attempts.attempted,
        attempts.taken,
        attempts.skipped,
        _dtypes(parameters),
        _dtypes(tensors),
        _number(first.get("eps")),
        _number(first.get("lr")),
        tuple(float(beta) for beta in first.get("betas", ()) or ()),
        sum(parameter.numel() for parameter in parameters),
        sum(value.numel() for value in tensors),
        Site(second.dtype, second.histogram()) if second.dtype else None,
    )


def _dtypes(tensors: list[Tensor]) -> tuple[str, ...]:
    return tuple(sorted({dtype_name(tensor.dtype) for tensor in tensors}))


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.item()) if value.numel() == 1 else None
    if isinstance(value, (tuple, list)) and value:  # Adafactor's eps is a pair
        return _number(value[0])
    return float(value) if isinstance(value, (int, float)) else None
