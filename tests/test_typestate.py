"""The protocol of mixed precision: every transition from every state, and what was seen on a real torch 2.14."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from amp_doctor.lint.typestate import ANY, Grads, Optimizer, Protocol, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

S, T = "scaler", "other scaler"
A, B = "a", "b"

STATES = [
    Optimizer(grads, stage, scaler, fresh=fresh, late=late)
    for grads, stage, scaler, fresh, late in product(Grads, Stage, (None, S, T), (False, True), (False, True))
]
# A word of the runs below -> what it does; the number is the node it happens at.
TRANSITIONS: dict[str, Callable[[Protocol, int], Protocol]] = {
    "built": lambda p, _at: p.built(A),
    "scaled backward": lambda p, at: p.backward(S, {A: True}, at),
    "plain backward": lambda p, at: p.backward(None, {A: True}, at),
    "scaled backward to both": lambda p, at: p.backward(S, {A: True, B: True}, at),
    "unscale": lambda p, at: p.unscale(S, A, at),
    "unscale b": lambda p, at: p.unscale(S, B, at),
    "step": lambda p, at: p.step(S, A, at),
    "step b": lambda p, at: p.step(S, B, at),
    "plain step": lambda p, at: p.step(None, A, at),
    "update": lambda p, at: p.update(S, at),
    "update other": lambda p, at: p.update(T, at),
    "zero": lambda p, _at: p.zeroed((A,)),
    "zero all": lambda p, _at: p.zeroed(None),
    "recreated": lambda p, _at: p.recreated(S),
    "unknown": lambda p, _at: p.unknown(),
    "unknown a": lambda p, _at: p.unknown((A,)),
    "unknown b": lambda p, _at: p.unknown((B,)),
}


def run(*words: str, start: Protocol | None = None) -> Protocol:
    """The protocol after these words, from two new optimizers and an unused scaler."""
    protocol = start or Protocol().built(A).built(B).mark(S, 0)
    for at, word in enumerate(words, 1):
        protocol = TRANSITIONS[word](protocol, at)
    return protocol


@pytest.mark.parametrize("word", TRANSITIONS)
def test_every_transition_from_every_state(word: str) -> None:
    for state in STATES:
        before = Protocol().put(A, state)
        after = TRANSITIONS[word](before, 9)
        assert after == TRANSITIONS[word](before, 9)
        assert hash(after) == hash(TRANSITIONS[word](before, 9))
        assert isinstance(after.get(A).grads, Grads)
        assert isinstance(after.get(A).stage, Stage)
        assert before == Protocol().put(A, state), "a protocol is a value"


@pytest.mark.parametrize("state", STATES, ids=str)
def test_what_holds_after_a_transition_whatever_was_before(state: Optimizer) -> None:
    p = Protocol().put(A, state)
    assert run("built", start=p).get(A) == Optimizer(Grads.EMPTY, Stage.READY)
    assert run("zero", start=p).get(A).grads is Grads.EMPTY
    assert run("zero", start=p).get(A).stage is state.stage, "zero_grad does not tell the scaler"
    assert run("zero", start=p) == run("zero", "zero", start=p)
    assert (run("step", start=p).get(A).grads, run("step", start=p).get(A).stage) == (Grads.SPENT, Stage.STEPPED)
    assert run("plain step", start=p).get(A).grads is Grads.SPENT
    assert run("plain step", start=p).get(A).stage is state.stage, "a plain step does not tell the scaler"
    assert (run("unscale", start=p).get(A).grads, run("unscale", start=p).get(A).stage) == (
        Grads.UNSCALED,
        Stage.UNSCALED,
    )
    assert run("unknown", start=p).get(A) == run("unknown a", start=p).get(A) == Optimizer()
    assert run("unknown b", start=p).get(A) == state
    assert run("update", "zero", start=p).get(A).late is False
    if state.scaler != T:
        assert run("update", start=p).get(A).stage is Stage.READY
    if state.scaler != S:
        assert run("update other", start=p).get(A).stage is Stage.READY
    else:
        assert run("update other", start=p).get(A) == state, "another scaler's update does nothing here"


def test_a_whole_step() -> None:
    stages = [run(*WHOLE[:n]).get(A) for n in range(len(WHOLE) + 1)]
    assert [(each.grads, each.stage) for each in stages] == [
        (Grads.EMPTY, Stage.READY),
        (Grads.SCALED, Stage.READY),
        (Grads.UNSCALED, Stage.UNSCALED),
        (Grads.SPENT, Stage.STEPPED),
        (Grads.SPENT, Stage.READY),
        (Grads.EMPTY, Stage.READY),
    ]


WHOLE = ("scaled backward", "unscale", "step", "update", "zero")


def test_a_second_step_is_like_the_first() -> None:
    for n in range(1, len(WHOLE) + 1):
        assert run(*WHOLE, *WHOLE[:n]).optimizers == run(*WHOLE, *WHOLE, *WHOLE[:n]).optimizers


def test_nodes_are_no_part_of_what_a_path_knows() -> None:
    assert run("scaled backward", "unscale").get(A) == run("zero", "scaled backward", "zero all", *WHOLE[:2]).get(A)


# --- what reference section 8 saw happen; the checks read these facts --------------------------------


def test_clip_without_unscale_meets_the_scale() -> None:
    assert run("scaled backward").get(A).grads is Grads.SCALED
    assert run("scaled backward", "unscale").get(A).grads is Grads.UNSCALED


def test_a_second_iteration_without_the_scale() -> None:
    optimizer = run("scaled backward", "step", "update", "zero", "plain backward").get(A)
    assert (optimizer.grads, optimizer.fresh, optimizer.plain_at) == (Grads.PLAIN, True, 5)


def test_scaled_backward_and_a_plain_step() -> None:
    protocol = run("scaled backward", "plain step")
    assert protocol.get(A).stepped_plain
    assert protocol.pending(S) is None, "what update() makes of it is told at the step, not again there"


def test_update_after_a_plain_step_has_nothing_to_consume() -> None:
    assert run("plain backward", "plain step").pending(S) == 0


def test_step_of_the_scaler_and_of_the_optimizer() -> None:
    before = run("scaled backward", "step").get(A)
    assert (before.grads, before.stage, before.step_at) == (Grads.SPENT, Stage.STEPPED, 2)


def test_unscale_in_the_middle_of_accumulation() -> None:
    optimizer = run("scaled backward", "unscale", "scaled backward").get(A)
    assert (optimizer.grads, optimizer.late) == (Grads.UNSCALED, True)
    assert not run("scaled backward", "scaled backward", "unscale").get(A).late


def test_unscale_then_update_then_step_divides_twice() -> None:
    optimizer = run("scaled backward", "unscale", "update").get(A)
    assert (optimizer.grads, optimizer.stage, optimizer.updates) == (Grads.UNSCALED, Stage.READY, "early")


def test_update_between_two_optimizers() -> None:
    assert run("scaled backward to both", "step", "update").get(B).updates == "between"
    assert run("scaled backward to both", "step", "step b", "update").get(B).updates == ""


def test_unscale_twice_and_after_a_step_and_step_twice_without_update() -> None:
    assert run("scaled backward", "unscale").get(A).stage is Stage.UNSCALED
    assert run("scaled backward", "step").get(A).stage is Stage.STEPPED
    assert run("scaled backward", "unscale b").get(A).stage is Stage.READY, "per optimizer"
    assert run("scaled backward", "unscale", "step", "update").get(A).stage is Stage.READY


def test_update_without_a_step() -> None:
    assert run().pending(S) == 0
    assert run("scaled backward").pending(S) == 0, "scale() alone gives update() nothing"
    assert run("scaled backward", "unscale").pending(S) == 2
    assert run("scaled backward", "step").pending(S) == 2
    assert run("scaled backward", "step", "update").pending(S) == 0
    assert run("unknown").pending(S) is None
    assert Protocol().pending(S) is None


def test_partly_scaled_losses_in_both_orders() -> None:
    assert run("scaled backward", "plain backward").get(A).plain_too
    assert run("plain backward", "scaled backward").get(A).plain_too
    assert not run("plain backward", "zero", "scaled backward").get(A).plain_too
    assert not run("scaled backward", "scaled backward").get(A).plain_too


def test_a_scaler_made_anew_forgets_what_it_did() -> None:
    protocol = run("scaled backward", "step", "recreated")
    assert (protocol.get(A).orphaned, protocol.get(A).stage, protocol.pending(S)) == (True, Stage.READY, 0)
    assert not protocol.get(B).orphaned
    assert not run("scaled backward", "step", "recreated", "scaled backward", "step").get(A).orphaned


# --- optimizers that appear late, and names that come to mean another one -----------------------------


def test_an_optimizer_that_appears_late_was_there_all_along() -> None:
    anybody = Protocol().zeroed(None).backward(S, {ANY: False}, 1)
    assert anybody.get(A).grads is Grads.SCALED
    assert anybody.unscale(S, A, 2).get(B).grads is Grads.SCALED
    assert Protocol().get(A) == Optimizer()


def test_known_lists_the_named_ones_or_the_unnamed_one() -> None:
    assert [oid for oid, _ in Protocol().known()] == [ANY]
    assert [oid for oid, _ in run().known()] == [A, B]


def test_without_forgets_what_a_name_stood_for() -> None:
    protocol = Protocol().built("value@7:1").built("value@70:1")
    assert [oid for oid, _ in protocol.without("value@7:").known()] == ["value@70:1"]
    assert protocol.without("nobody") is protocol


def test_update_leaves_the_optimizers_of_other_scalers() -> None:
    protocol = (
        Protocol().built(A).built(B).backward(S, {A: True}, 1).backward(T, {B: True}, 2).step(S, A, 3).step(T, B, 4)
    )
    after = protocol.update(S, 5)
    assert (after.get(A).stage, after.get(B).stage) == (Stage.READY, Stage.STEPPED)
    assert (after.pending(S), after.pending(T)) == (0, 4)


def test_zeroing_an_optimizer_that_nobody_met() -> None:
    protocol = Protocol().backward(S, {ANY: False}, 1).zeroed((A,))
    assert (protocol.get(A).grads, protocol.get(B).grads) == (Grads.EMPTY, Grads.SCALED)


def test_order_of_naming_does_not_matter() -> None:
    assert Protocol().built(A).built(B) == Protocol().built(B).built(A)
    assert Protocol().mark(S, 1).mark(T, 2) == Protocol().mark(T, 2).mark(S, 1)
    assert replace(Optimizer(), step_at=1) == replace(Optimizer(), step_at=2)
