"""Counts the attempts of every optimizer, skipped ones included (measured on torch 2.13).

The global step hooks of torch.optim are not called when a GradScaler skips an ordinary optimizer, and are called when
it skips a fused one; they fire twice for an optimizer that calls `super().step`, once per parameter for optimizers that
step inside the backward pass, and around the backward passes of a closure.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amp_doctor.diagnosis.profile import STEP
from amp_doctor.diagnosis.words import count

if TYPE_CHECKING:
    from types import FrameType

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from amp_doctor.probe.session import Session


# So many steps of others in a row are no alternation, unless a longer one was seen: the leader has been left behind.
PATIENCE = 8


class Count:
    """Attempts to step, and what became of them."""

    __slots__ = ("attempted", "skipped", "taken")

    def __init__(self) -> None:
        self.attempted = self.taken = self.skipped = 0

    def add(self, attempted: int, skipped: int) -> None:
        """So many more."""
        self.attempted += attempted
        self.taken += attempted - skipped
        self.skipped += skipped


class Attempts(Count):
    """What one optimizer has tried; `streak` since the leading one stepped last."""

    __slots__ = ("name", "optimizer", "streak")

    def __init__(self, optimizer: Optimizer, name: str) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.name = name
        self.streak = Count()

    def shares(self, other: Attempts) -> bool:
        """Whether both train the same parameter."""
        mine = {id(one) for group in self.optimizer.param_groups for one in group["params"]}
        return any(id(one) in mine for group in other.optimizer.param_groups for one in group["params"])


class StepCounter:
    """Owns the two global hooks. A step of the run is an attempt of the leading optimizer.

    That is the first that makes one, until a script that takes new optimizers leaves it behind.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handles: list[RemovableHandle] = []
        self._logs: dict[int, Attempts] = {}
        # The optimizers whose steps are being run, and the frames in which they are.
        self._stack: list[Optimizer] = []
        self._frames: list[FrameType] = []
        # The optimizer whose step a scaler is running, and whether its own hook has fired.
        self._scaled: Any = None
        self._fired = False
        # Optimizers that stepped inside the backward pass under way.
        self._inside: Attempts | None = None
        self.leader: Attempts | None = None
        self.run = Count()
        # Attempts of others since the leader's last, and the most between two of its own.
        self._others = self._most_others = 0
        self._succeeded = False

    @property
    def logs(self) -> list[Attempts]:
        """The optimizers that have tried to step, in the order of their first attempt."""
        return [log for log in self._logs.values() if log.attempted]

    def install(self) -> None:
        """Listen to all optimizers."""
        self._handles = [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]

    def remove(self) -> None:
        """Listen no more, and keep no optimizer alive; the profile has been made."""
        while self._handles:
            self._handles.pop().remove()
        self._logs.clear()
        self._stack.clear()
        self._frames.clear()
        self.leader = self._inside = self._scaled = None

    @property
    def stepping(self) -> bool:
        """Whether an optimizer's step is being run: a closure may call forward and backward inside."""
        return bool(self._stack)

    def scaler_begins(self, optimizer: Any) -> None:
        """A GradScaler is about to step, or to skip."""
        self._scaled, self._fired = _innermost(optimizer), False

    def scaler_ends(self, optimizer: Any, found_inf: bool, scale: float | None) -> None:
        """It has; a fused optimizer's hooks fired although nothing moved. `scale` is None when it was not in use."""
        inner, self._scaled = _innermost(optimizer), None
        skipped = found_inf or not self._fired
        if scale is not None:
            self._session.nonfinite.scaler_stepped(scale, skipped)
        if skipped:
            self._session.weights.forget()
        self._attempt(self._log(inner), skipped)

    def backward_ends(self) -> None:
        """Optimizers that step inside the backward pass have made one attempt together."""
        inside, self._inside = self._inside, None
        if inside is not None:
            self._attempt(inside, False)

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._session.active:
            return
        self._session.replaying.optimizer_begins(closure=len(args) > 1 or bool(kwargs))
        self._forget_raised()
        if optimizer not in self._stack:
            self._session.gradients.step_begins()
            with self._session.guard("updates"):
                self._session.weights.before(optimizer)
        self._stack.append(optimizer)
        self._frames.append(sys._getframe(1))

    def _end(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._session.active:
            return
        self._session.replaying.optimizer_ends()
        if optimizer in self._stack:
            while self._stack.pop() is not optimizer:
                pass  # an inner step raised
            del self._frames[len(self._stack) :]
        if optimizer in self._stack:
            return  # `super().step` of a subclass: the outer call counts
        with self._session.guard("updates"):
            self._session.weights.after()
        if self._scaled is optimizer:
            self._fired = True
        elif self._session.gradients.depth and not self._stack:
            self._inside = self._inside or self._log(optimizer)
        elif self._stack:
            # A wrapper that is an Optimizer itself and steps a real one: the innermost is the real one.
            self._log(optimizer)
            self._wrapped(optimizer)
        elif id(optimizer) not in self._wrappers:
            self._attempt(self._log(optimizer), self._void(optimizer))

    def _forget_raised(self) -> None:
        """A step that raised has no end; its frame is not among those that are running."""
        if not self._stack:
            return
        running: set[FrameType] = set()
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            running.add(frame)
            frame = frame.f_back
        while self._frames and self._frames[-1] not in running:
            self._frames.pop()
            self._stack.pop()

    _wrappers: frozenset[int] = frozenset()

    def _wrapped(self, optimizer: Optimizer) -> None:
        self._wrappers |= {id(outer) for outer in self._stack}
        self._attempt(self._log(optimizer), self._void(optimizer))

    def _void(self, optimizer: Optimizer) -> bool:
        """Whether a loss scale of ours has made the step void, as a GradScaler would have skipped it."""
        imposed = self._session.imposed
        if imposed is None or imposed.scaling is None or not imposed.scaling.active:
            return False
        scale, void = imposed.scaling.taken(optimizer)
        self._session.nonfinite.scaler_stepped(scale, void)
        return void

    def _log(self, optimizer: Optimizer) -> Attempts:
        log = self._logs.get(id(optimizer))
        if log is None:
            log = self._logs[id(optimizer)] = Attempts(optimizer, self._name(optimizer))
        return log

    def _name(self, optimizer: Optimizer) -> str:
        """Its class; the second of a class, in the order in which they first step, is `Adam (2)`."""
        name = type(optimizer).__name__
        same = sum(type(one.optimizer) is type(optimizer) for one in self._logs.values())
        return f"{name} ({same + 1})" if same else name

    def _attempt(self, log: Attempts, skipped: bool) -> None:
        log.add(1, skipped)
        log.streak.add(1, skipped)
        if self.leader is None:
            self.leader = log
            self._session.place(STEP)
        if log is not self.leader:
            self._others += 1
            if not self._leads(log, self.leader):
                self._session.other_stepped()
                return
            if not self._succeeded:
                first = f"{self.leader.name} stopped stepping after {count(self.run.attempted, 'step')}"
                self._session.note(
                    f"{first}: those of {log.name} are counted on, and so whenever the script takes another"
                )
            self.leader, self._others, self._succeeded = log, 0, True
        steps = log.streak
        self.run.add(steps.attempted, steps.skipped)
        self._most_others = max(self._most_others, self._others)
        self._others = 0
        for other in self._logs.values():
            other.streak = Count()
        self._session.step_ends(steps.attempted)

    def _leads(self, log: Attempts, leader: Attempts) -> bool:
        """Whether another optimizer has taken the place of the leader: it steps the same weights, or goes on alone."""
        if log.attempted == 1 and leader.attempted > 1 and (self._succeeded or log.shares(leader)):
            return True
        return self._others > PATIENCE + 2 * self._most_others


def _innermost(optimizer: Any) -> Any:
    """The torch optimizer inside wrappers such as Accelerate's."""
    while type(optimizer).__name__ in ("AcceleratedOptimizer", "LightningOptimizer", "_FabricOptimizer"):
        inner = getattr(optimizer, "optimizer", None) or getattr(optimizer, "_optimizer", None)
        if inner is None:
            break
        optimizer = inner
    return optimizer
