"""The protocol of mixed precision on one screen: what each call does to gradients and to the scaler.

Stages are PyTorch's own (torch/amp/grad_scaler.py, OptState): READY, UNSCALED, STEPPED, per scaler and
optimizer. The machine never reports; checks compare the state before an event with what it should be.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum


class Grads(Enum):
    """What the gradients of one optimizer are multiplied by."""

    EMPTY = "empty"
    SCALED = "scaled"
    UNSCALED = "unscaled"
    PLAIN = "plain"
    SPENT = "spent"  # stepped, not yet zeroed
    UNKNOWN = "unknown"


class Stage(Enum):
    """PyTorch's OptState of one scaler and one optimizer."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer on one path. `linked`: the backward surely reached its parameters.

    `fresh`: a backward ran since the last step, unscale_ or update. `late`: a scaled backward was added to
    gradients that were already unscaled. `updates`: update() ran between backward and step: "" no, "early"
    right after unscale_, "between" after another optimizer's step. The `*_at` fields are the trail.
    """

    grads: Grads = Grads.UNKNOWN
    stage: Stage = Stage.UNKNOWN
    scaler: str | None = None
    linked: bool = False
    fresh: bool = False
    late: bool = False
    plain_too: bool = False
    updates: str = ""
    stepped_plain: bool = False
    orphaned: bool = False
    backward_at: int = field(default=0, compare=False)
    plain_at: int = field(default=0, compare=False)
    unscale_at: int = field(default=0, compare=False)
    step_at: int = field(default=0, compare=False)
    update_at: int = field(default=0, compare=False)


ANY = "*"
"""The optimizer that has not been named yet: what it is when it first appears."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Optimizers by oid (with ANY for those yet to appear), and what each scaler did since its update()."""

    optimizers: tuple[tuple[str, Optimizer], ...] = ((ANY, Optimizer()),)
    used: tuple[tuple[str, int], ...] = ()  # scaler oid -> at of its last unscale_/step since update()
    open: tuple[
        tuple[str, int], ...
    ] = ()  # scaler oid -> at of an unscale_ without step or update; < 0 after a backward

    def get(self, oid: str) -> Optimizer:
        """The state of an optimizer; of the unnamed one when it has not appeared."""
        table = dict(self.optimizers)
        return table.get(oid, table[ANY])

    def known(self) -> list[tuple[str, Optimizer]]:
        """The optimizers seen so far, or the unnamed one when there is none."""
        named = [pair for pair in self.optimizers if pair[0] != ANY]
        return named or [(ANY, dict(self.optimizers)[ANY])]

    def put(self, oid: str, optimizer: Optimizer) -> Protocol:
        """The same protocol with another state of one optimizer."""
        table = dict(self.optimizers)
        table[oid] = optimizer
        return replace(self, optimizers=tuple(sorted(table.items(), key=lambda pair: pair[0])))

    def mark(self, scaler: str, at: int) -> Protocol:
        """The scaler has something for update() to consume (at 0: nothing any more)."""
        table = dict(self.used)
        table[scaler] = at
        return replace(self, used=tuple(sorted(table.items())))

    def opened(self, scaler: str, at: int) -> Protocol:
        """The scaler unscaled something at `at`, which neither step() nor update() has closed (0: closed)."""
        table = {key: value for key, value in self.open if key != scaler}
        return replace(
            self, open=tuple(sorted(table.items())) if not at else tuple(sorted({**table, scaler: at}.items()))
        )

    def left_open(self, scaler: str) -> int:
        """The unscale_ that was still open when the next backward ran, 0 when there is none."""
        return max(0, -dict(self.open).get(scaler, 0))

    def pending(self, scaler: str) -> int | None:
        """Where the scaler last did something that update() consumes; 0 nothing since; None unknown."""
        return dict(self.used).get(scaler)

    def without(self, oid: str) -> Protocol:
        """Forget an optimizer whose name now stands for another one."""
        if not any(oid in known for known, _ in self.optimizers):
            return self
        return replace(self, optimizers=tuple(pair for pair in self.optimizers if oid not in pair[0]))

    def recreated(self, scaler: str) -> Protocol:
        """A scaler was made anew where an earlier one had stepped these optimizers."""
        after = self
        for oid, before in self.optimizers:
            if before.scaler == scaler:
                after = after.put(oid, replace(before, orphaned=True, stage=Stage.READY))
        return after.mark(scaler, 0)

    def built(self, oid: str) -> Protocol:
        """An optimizer was constructed: no gradients yet."""
        return self.put(oid, Optimizer(Grads.EMPTY, Stage.READY))

    def backward(self, scaler: str | None, reached: dict[str, bool], at: int) -> Protocol:
        """Gradients arrive at the optimizers of `reached` (oid -> surely linked)."""
        place = dict(self.open).get(scaler, 0) if scaler is not None else 0
        after = self.opened(scaler, -place) if scaler is not None and place > 0 else self
        for oid, linked in reached.items():
            before = self.get(oid)
            if scaler is None:
                mixed = before.grads in (Grads.SCALED, Grads.UNSCALED)
                new = replace(before, linked=linked, fresh=True, plain_at=at)
                new = replace(new, plain_too=True) if mixed else replace(new, grads=Grads.PLAIN, scaler=None)
            else:
                new = replace(
                    before,
                    grads=Grads.SCALED,
                    scaler=scaler,
                    linked=linked,
                    fresh=True,
                    plain_too=before.plain_too or before.grads is Grads.PLAIN,
                    late=before.late or (before.grads is Grads.UNSCALED and before.stage is Stage.UNSCALED),
                    updates="",
                    backward_at=at,
                )
                if before.grads is Grads.UNSCALED and before.stage is Stage.UNSCALED:
                    new = replace(new, grads=Grads.UNSCALED)
            after = after.put(oid, new)
        return after

    def unscale(self, scaler: str, oid: str, at: int) -> Protocol:
        """`scaler.unscale_(optimizer)`."""
        new = replace(
            self.get(oid), grads=Grads.UNSCALED, stage=Stage.UNSCALED, scaler=scaler, fresh=False, unscale_at=at
        )
        return self.put(oid, new).mark(scaler, at).opened(scaler, at)

    def step(self, scaler: str | None, oid: str, at: int) -> Protocol:
        """`scaler.step(optimizer)`, or `optimizer.step()` when the scaler is None."""
        before = self.get(oid)
        new = replace(
            before, grads=Grads.SPENT, fresh=False, late=False, plain_too=False, updates="", orphaned=False, step_at=at
        )
        if scaler is None:
            after = self.put(oid, replace(new, stepped_plain=True))
            # What update() will make of gradients that went past the scaler is reported at the step, not again there.
            return replace(after, used=tuple(pair for pair in self.used if pair[0] != before.scaler))
        after = self.put(oid, replace(new, stage=Stage.STEPPED, scaler=scaler, stepped_plain=False))
        return after.mark(scaler, at).opened(scaler, 0)

    def update(self, scaler: str, at: int) -> Protocol:
        """`scaler.update()`."""
        after = self
        stepped = any(each.stage is Stage.STEPPED and each.scaler == scaler for _, each in self.optimizers)
        for oid, before in self.optimizers:
            if before.scaler not in (scaler, None):
                continue
            new = replace(before, stage=Stage.READY)
            if before.scaler == scaler and before.grads in (Grads.SCALED, Grads.UNSCALED):
                new = replace(new, updates="between" if stepped else "early", update_at=at)
            after = after.put(oid, new)
        return after.mark(scaler, 0).opened(scaler, 0)

    def zeroed(self, oids: tuple[str, ...] | None) -> Protocol:
        """Gradients of these optimizers (of all when None) are dropped."""
        after = self
        for oid, before in self.optimizers:
            if oids is None or oid in oids:
                new = replace(
                    before, grads=Grads.EMPTY, fresh=False, late=False, plain_too=False, updates="", linked=False
                )
                after = after.put(oid, new)
        for oid in oids or ():
            if oid not in dict(self.optimizers):
                after = after.put(
                    oid, replace(self.get(oid), grads=Grads.EMPTY, fresh=False, late=False, plain_too=False, updates="")
                )
        return after

    def touched(self, oid: str) -> Protocol:
        """A method of the optimizer's own: it may have changed or dropped the gradients, and no scaler knows of it."""
        before = self.get(oid)
        return self.put(
            oid,
            replace(before, grads=Grads.UNKNOWN, fresh=False, late=False, plain_too=False, updates="", linked=False),
        )

    def unknown(self, oids: tuple[str, ...] | None = None) -> Protocol:
        """Code that is not seen may have done anything with these optimizers (all when None)."""
        after = self
        for oid, _ in self.optimizers:
            if oids is None or oid in oids:
                after = after.put(oid, Optimizer())
        return replace(after, used=(), open=())
