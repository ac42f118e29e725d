"""A recorded step run again as it was: every bit must come out the same, the gradients' too."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from amp_doctor.probe.fingerprint import fingerprint
from amp_doctor.probe.graph_calls import OutOfTime

if TYPE_CHECKING:
    from amp_doctor.probe.recorded import Recording


@dataclass(frozen=True, slots=True)
class Exactness:
    """`compared` results and gradients had fingerprints; `different` names those whose bits were others."""

    compared: int
    different: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether something was compared, and nothing differed."""
        return self.compared > 0 and not self.different


def replay_exactly(recording: Recording, deadline: float | None = None) -> Exactness:
    """Run the graph with torch.fx.Interpreter, backward passes included; the state of random numbers is put back.

    OutOfTime when `time.monotonic()` passes `deadline`.
    """
    inputs = recording.fresh_inputs()
    reached: dict[str, list[int | None]] = {}
    for leaf, tensor in zip(recording.inputs, inputs, strict=True):
        if leaf.requires_grad:
            reached[leaf.name] = []
            tensor.register_hook(lambda grad, name=leaf.name: reached[name].append(fingerprint(grad)))
    interpreter = _Comparing(recording.graph_module, deadline)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        interpreter.run(*inputs)
    different, compared = list(interpreter.different), interpreter.compared
    for leaf in recording.inputs:
        if leaf.requires_grad and leaf.gradients:
            compared += 1
            if tuple(reached[leaf.name]) != leaf.gradients:
                different.append(f"grad of {leaf.name}")
    return Exactness(compared, tuple(different))


class _Comparing(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, deadline: float | None) -> None:
        super().__init__(module)
        self._deadline = deadline
        self.different: list[str] = []
        self.compared = 0

    def run_node(self, n: fx.Node) -> Any:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise OutOfTime
        result = super().run_node(n)
        expected = n.meta.get("bits")
        if expected is not None and isinstance(result, Tensor):
            self.compared += 1
            if fingerprint(result) != expected:
                self.different.append(n.name)
        return result
