"""What a path assumes about conditions, against truth tables: no case is lost and none is made up."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_doctor.lint import objects
from amp_doctor.lint.assume import Known, assume, decide, negate, none_test
from amp_doctor.lint.objects import FALSE, NONE, TRUE, Api, Items, Literal, Object, Symbol, Table, Tensor, Value

FLAG, OTHER, DTYPE = Symbol("flag"), Symbol("other"), Symbol("dtype")
# Everything the three symbols can be in these tests.
DOMAINS: dict[str, tuple[object, ...]] = {
    "flag": (None, False, True),
    "other": (None, False, True),
    "dtype": ("fp16", "bf16", "fp32"),
}
WORLDS = [dict(zip(DOMAINS, values, strict=True)) for values in product(*DOMAINS.values())]

ATOM: st.SearchStrategy[Value] = st.sampled_from(
    [
        FLAG,
        OTHER,
        TRUE,
        FALSE,
        objects.Test("none", (FLAG,)),
        objects.Test("none", (OTHER,)),
        objects.Test("eq", (FLAG, TRUE)),
        objects.Test("eq", (DTYPE, Literal("fp16"))),
        objects.Test("eq", (Literal("bf16"), DTYPE)),
    ]
)
VALUE: st.SearchStrategy[Value] = st.recursive(
    ATOM,
    lambda inner: (
        inner.map(lambda part: objects.Test("not", (part,)))
        | st.builds(objects.Test, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple))
    ),
    max_leaves=6,
)
TRUTHS = st.lists(st.tuples(VALUE, st.booleans()), max_size=2)


def value_in(value: Value, world: dict[str, Any]) -> Any:
    match value:
        case Literal(constant):
            return constant
        case Symbol(key):
            return world[key]
        case objects.Test("not", (part,)):
            return not value_in(part, world)
        case objects.Test("and", parts):
            return all(value_in(part, world) for part in parts)
        case objects.Test("or", parts):
            return any(value_in(part, world) for part in parts)
        case objects.Test("none", (part,)):
            return value_in(part, world) is None
        case objects.Test("eq", (left, right)):
            return value_in(left, world) == value_in(right, world)
    raise AssertionError(value)


def fits(world: dict[str, Any], known: Known) -> bool:
    """Whether everything that is assumed is so in this world."""
    facts: dict[str, bool] = {}
    for name in ("flag", "other"):
        facts[name] = bool(world[name])
        facts[f"none({name})"] = world[name] is None
    facts |= {f"eq(dtype,'{dtype}')": world["dtype"] == dtype for dtype in ("fp16", "bf16")}
    return all(facts[key] is truth for key, truth in known.items())


def assumed(truths: list[tuple[Value, bool]]) -> list[Known]:
    """All the ways to assume these one after the other."""
    ways: list[Known] = [{}]
    for value, truth in truths:
        ways = [after for way in ways for after in assume(value, truth, way)]
    return ways


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(TRUTHS, VALUE, st.booleans())
def test_assuming_splits_the_worlds_and_loses_none(before: list[tuple[Value, bool]], value: Value, truth: bool) -> None:
    for known in assumed(before):
        ways = assume(value, truth, known)
        for world in WORLDS:
            possible = fits(world, known) and bool(value_in(value, world)) is truth
            assert any(fits(world, way) for way in ways) is possible, (known, world, ways)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(TRUTHS, VALUE)
def test_what_is_decided_is_so_in_every_world(before: list[tuple[Value, bool]], value: Value) -> None:
    for known in assumed(before):
        truth = decide(value, known)
        if truth is not None:
            assert all(bool(value_in(value, world)) is truth for world in WORLDS if fits(world, known))


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(TRUTHS, VALUE, st.booleans())
def test_what_is_assumed_is_decided(before: list[tuple[Value, bool]], value: Value, truth: bool) -> None:
    for known in assumed(before):
        for way in assume(value, truth, known):
            assert decide(value, way) is truth
            assert assume(value, truth, way) == [way]
            assert assume(value, not truth, way) == []


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(VALUE)
def test_negation(value: Value) -> None:
    assert all(bool(value_in(negate(value), world)) is not bool(value_in(value, world)) for world in WORLDS)


def test_assume_leaves_the_known_alone() -> None:
    known: Known = {"other": True}
    assume(objects.Test("or", (FLAG, objects.Test("none", (FLAG,)))), True, known)
    assert known == {"other": True}


def test_the_arms_of_one_condition_stay_apart() -> None:
    (yes,) = assume(FLAG, True, {})
    (no,) = assume(FLAG, False, {})
    assert (decide(FLAG, yes), decide(FLAG, no)) == (True, False)
    assert decide(none_test(FLAG), yes) is False
    assert decide(none_test(FLAG), no) is None


def test_an_object_that_is_none_is_false() -> None:
    (none,) = assume(none_test(FLAG), True, {})
    (other,) = assume(none_test(FLAG), False, {})
    assert decide(FLAG, none) is False
    assert decide(FLAG, other) is None


def test_equal_to_one_constant_is_unequal_to_the_others() -> None:
    (half,) = assume(objects.Test("eq", (DTYPE, Literal("fp16"))), True, {})
    assert decide(objects.Test("eq", (DTYPE, Literal("bf16"))), half) is False
    assert decide(objects.Test("eq", (Symbol("dtype2"), Literal("bf16"))), half) is None
    (not_half,) = assume(objects.Test("eq", (DTYPE, Literal("fp16"))), False, {})
    assert decide(objects.Test("eq", (DTYPE, Literal("bf16"))), not_half) is None


def test_names_of_one_dtype_are_equal() -> None:
    assert decide(objects.Test("eq", (Api("torch.half"), Api("torch.float16"))), {}) is True
    assert decide(objects.Test("eq", (Api("torch.half"), Api("torch.bfloat16"))), {}) is False
    assert decide(objects.Test("eq", (Api("lib.a"), Api("lib.b"))), {}) is None, "other names may stand for one thing"


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        (Literal(0), False),
        (Literal("x"), True),
        (Literal(...), None),
        (NONE, False),
        (Object("scaler", "s"), True),
        (Object("gradient", "g"), None),
        (Items("list", ()), False),
        (Items("list", (), exact=False), None),
        (Items("list", (NONE,)), True),
        (Table(()), False),
        (Tensor(), None),
        (Api("lib.flag"), None),
        (objects.Test("none", (NONE,)), True),
        (objects.Test("none", (Object("scaler", "s"),)), False),
        (objects.Test("eq", (Literal(1), Literal(1))), True),
        (objects.Test("eq", (Literal(1), Literal(2))), False),
        (objects.Test("eq", (Tensor(), Tensor())), None),
        (objects.Test("in", (FLAG, OTHER)), None),
    ],
)
def test_truth_of_a_value_alone(value: Value, truth: bool | None) -> None:
    assert decide(value, {}) is truth
