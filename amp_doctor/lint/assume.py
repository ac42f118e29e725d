"""What a path has assumed: deciding and assuming truth values so that equal conditions stay correlated."""

from __future__ import annotations

from amp_doctor.lint.objects import (
    FALSE,
    TRUE,
    Api,
    Class,
    Code,
    Items,
    Literal,
    Method,
    Object,
    Partial,
    Symbol,
    Table,
    Tensor,
    Test,
    Value,
    dtype_like,
    dtype_of,
    text,
)

Known = dict[str, bool]
"""Key of a symbol or test -> the truth assumed on this path."""


def decide(value: Value, known: Known) -> bool | None:
    """The truth of a value as far as this path knows it."""
    match value:
        case Literal(constant):
            return bool(constant) if constant is not ... else None
        case Test("not", (part,)):
            truth = decide(part, known)
            return None if truth is None else not truth
        case Test("and", parts):
            truths = [decide(part, known) for part in parts]
            return False if False in truths else None if None in truths else True
        case Test("or", parts):
            truths = [decide(part, known) for part in parts]
            return True if True in truths else None if None in truths else False
        case Test("none", (part,)):
            return _is_none(part, known)
        case Test("eq", (left, right)):
            return _equal(left, right, known)
        case Test():
            return known.get(text(value))
        case Symbol(key):
            truth = known.get(key)
            if truth is None and known.get(f"none({key})"):
                return False
            return truth
        case Object("scaler" | "optimizer" | "module" | "autocast" | "instance"):
            return True
        case Code() | Class() | Method() | Partial():
            return True
        case Items(_, items, exact):
            return bool(items) if exact else None
        case Table(pairs, exact):
            return bool(pairs) if exact else None
        case _:
            return None


def _is_none(value: Value, known: Known) -> bool | None:
    match value:
        case Literal(constant):
            return constant is None
        case Symbol(key):
            if known.get(key):
                return False
            return known.get(f"none({key})")
        case Test():
            return False
        case _:
            return False


def _equal(left: Value, right: Value, known: Known) -> bool | None:
    if left == right and not isinstance(left, Tensor):
        return True
    for one, other in ((left, right), (right, left)):
        # `x.dtype == torch.float16`: what is believed of x holds for the test too, or the two would disagree.
        believed, named = dtype_like(one)[0], dtype_of(other) if isinstance(other, Api) else None
        if believed is not None and named is not None:
            return believed == named
    constant = (Literal, Api)
    if isinstance(left, constant) and isinstance(right, constant):
        if isinstance(left, Api) and isinstance(right, Api):
            # Different names of one dtype are one value; other APIs may alias.
            return dtype_of(left) == dtype_of(right) if dtype_of(left) and dtype_of(right) else None
        return False if type(left) is type(right) else None
    if isinstance(right, constant):
        return _lookup(left, right, known)
    if isinstance(left, constant):
        return _lookup(right, left, known)
    return known.get(text(Test("eq", (left, right))))


def _lookup(value: Value, constant: Value, known: Known) -> bool | None:
    truth = known.get(f"eq({text(value)},{text(constant)})")
    if truth is not None:
        return truth
    prefix = f"eq({text(value)},"
    # Equal to one constant means unequal to every other.
    if any(assumed and key.startswith(prefix) for key, assumed in known.items()):
        return False
    if constant == TRUE:
        return decide(value, known)
    if constant == FALSE:
        truth = decide(value, known)
        return None if truth is None else not truth
    return None


def assume(value: Value, truth: bool, known: Known) -> list[Known]:
    """The ways in which `value` can have this truth: one extended copy of `known` per way, none if it cannot."""
    decided = decide(value, known)
    if decided is not None:
        return [known] if decided is truth else []
    match value:
        case Test("not", (part,)):
            return assume(part, not truth, known)
        case Test("and" | "or" as op, parts):
            conjunction = (op == "and") is truth
            if conjunction:
                ways = [known]
                for part in parts:
                    ways = [extended for way in ways for extended in assume(part, truth, way)]
                return ways
            ways, rest = [], [known]
            for part in parts:
                ways += [extended for way in rest for extended in assume(part, truth, way)]
                rest = [extended for way in rest for extended in assume(part, not truth, way)]
            return ways
        case Test("none", (Symbol(key),)):
            extended = {**known, f"none({key})": truth}
            return [extended]
        case Test("eq", (left, right)):
            if isinstance(left, Literal | Api):
                left, right = right, left
            if isinstance(right, Literal) and isinstance(right.value, bool):
                return assume(left, truth is right.value, known)
            return [{**known, f"eq({text(left)},{text(right)})": truth}]
        case Symbol(key):
            return [{**known, key: truth, f"none({key})": False} if truth else {**known, key: False}]
        case Test():
            return [{**known, text(value): truth}]
        case _:
            return [known]


def negate(value: Value) -> Value:
    """`not value`, without stacking negations."""
    if isinstance(value, Test) and value.op == "not":
        return value.parts[0]
    if isinstance(value, Literal):
        return FALSE if value.value else TRUE
    return Test("not", (value,))


def none_test(value: Value) -> Value:
    """`value is None`."""
    truth = _is_none(value, {}) if not isinstance(value, Symbol) else None
    return Test("none", (value,)) if truth is None else Literal(truth)
