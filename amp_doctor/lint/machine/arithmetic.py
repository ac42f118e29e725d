"""Operators and comparisons: on numbers, tensors, gradients and lists."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amp_doctor.lint.assume import negate, none_test
from amp_doctor.lint.events import Operation
from amp_doctor.lint.machine import binding, evaluate, marks, tensors
from amp_doctor.lint.objects import (
    FALSE,
    TRUE,
    Api,
    Items,
    Literal,
    Object,
    Symbol,
    Table,
    Tensor,
    Test,
    Value,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.lint.machine.interpreter import Interpreter
    from amp_doctor.lint.state import State


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Subtract": operator.sub,
    "Multiply": operator.mul,
    "Divide": operator.truediv,
    "Power": operator.pow,
    "FloorDivide": operator.floordiv,
    "Modulo": operator.mod,
}


def binary(m: Interpreter, at: int, op: str, left: Value, right: Value, state: State, fold: bool = False) -> Value:
    """A binary operator; two literals are computed outside comprehensions, or where both are written (`fold`)."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        if fold or not m.loops:
            value = _arithmetic(op, left.value, right.value)
            if value is not None:
                return Literal(value, at)
        return evaluate.fresh(m, f"value@{at}", "", state)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        result = tensor_operation(at, op, left, right, state)
        m.emit(Operation(at, op, left, right, result), state)
        return result
    for side in (left, right):
        if isinstance(side, Object) and side.role == "gradient":
            binding.read_gradient(m, side, "read", at, state)
            return Object("gradient", f"{side.oid}*", facts=side.facts, at=at)
        if isinstance(side, Object) and side.role == "scale":
            return side.having(op=Literal(op))
    if isinstance(left, Items) and isinstance(right, Items) and op == "Add":
        return Items(left.kind, (*left.items, *right.items), left.exact and right.exact)
    if op == "Add" and all(
        isinstance(s, Items) or (isinstance(s, Object) and s.role == "params") for s in (left, right)
    ):
        return Items("list", (left, right), False)
    if op == "BitOr" and isinstance(left, Table) and isinstance(right, Table):
        return Table((*left.pairs, *right.pairs), left.exact and right.exact)
    if op in ("BitAnd", "BitOr"):
        return Test("and" if op == "BitAnd" else "or", (left, right))
    return Symbol(f"({text(left)} {op} {text(right)})", m.name_of(left))


def _arithmetic(op: str, left: Any, right: Any) -> Any:
    function = _ARITHMETIC.get(op)
    if function is None or isinstance(left, bool) or isinstance(right, bool):
        return None
    if op == "Power" and (abs(right) > 400 if isinstance(right, int | float) else True):
        return None
    if isinstance(left, str | bytes) and op != "Add":
        return None
    try:
        return function(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return None


def tensor_operation(at: int, op: str, left: Value, right: Value, state: State) -> Tensor:
    """The tensor that an operator makes of a tensor and something else."""
    sides = [side for side in (left, right) if isinstance(side, Tensor)]
    other = right if isinstance(left, Tensor) else left
    if isinstance(other, Object) and other.role == "scale" and op in ("Divide", "Multiply"):
        base = sides[0]
        return replace(base, scaled=None, tags=base.tags | {"rescaled"}, at=at)
    if op == "MatrixMultiply":
        return tensors.op_result("matmul", sides, state, at)
    if op == "Power":
        return marks.mark(tensors.op_result("pow", sides, state, at), "pow", sides, right)
    mixed = not isinstance(other, Tensor) and not marks.is_number(other)
    result = marks.mark(tensors.op_result(op.lower(), sides, state, at, mixed=mixed), op.lower(), sides, right)
    if op == "Divide" and isinstance(left, Tensor) and "contraction" in left.tags:
        result = result.tagged("contraction")
    if op in ("Add", "Subtract") and all("contraction" in side.tags for side in sides):
        result = result.tagged("contraction")
    return result


def compare(m: Interpreter, at: int, op: str, left: Value, right: Value, state: State) -> Value:
    """A comparison: as far as possible a test that assumptions can be made about."""
    none_left = isinstance(left, Literal) and left.value is None
    none_right = isinstance(right, Literal) and right.value is None
    if op in ("is", "is not", "==", "!=") and (none_left or none_right):
        value = right if none_left else left
        if isinstance(value, Object) and value.role == "gradient":
            return evaluate.fresh(m, f"value@{at}", "", state)
        test = none_test(value)
        return test if op in ("is", "==") else negate(test)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        m.emit(Operation(at, op, left, right, left), state)
        return evaluate.fresh(m, f"value@{at}", "", state)
    if op in ("==", "is", "!=", "is not"):
        apart = differs(left, right, state) or differs(right, left, state)
        equal: Value = FALSE if apart else Test("eq", (left, right))
        return equal if op in ("==", "is") else negate(equal)
    if op in ("in", "not in"):
        found = isinstance(left, Literal) and any(str(left.value) in piece for piece in said(right, state))
        result = TRUE if found else contained(left, right)
        return result if op == "in" else negate(result)
    if isinstance(left, Literal) and isinstance(right, Literal):
        try:
            answer = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[op](
                left.value, right.value
            )
            return Literal(bool(answer))
        except (TypeError, KeyError):
            pass
    if (isinstance(left, Object) and left.role == "scale") or (isinstance(right, Object) and right.role == "scale"):
        return evaluate.fresh(m, f"value@{at}", "", state)
    return Symbol(f"({text(left)} {op} {text(right)})", m.name_of(left))


def said(value: Value, state: State) -> tuple[str, ...]:
    """The literal pieces of an f-string: they stand in it, whatever is filled in."""
    known = state.heap.get((value.key, "%said")) if isinstance(value, Symbol) else None
    return known.value if isinstance(known, Literal) else ()


def differs(value: Value, constant: Value, state: State) -> bool:
    """An f-string is no constant that lacks one of its pieces."""
    return isinstance(constant, Literal) and any(piece not in str(constant.value) for piece in said(value, state))


def contained(left: Value, right: Value) -> Value:
    """`left in right`."""
    if isinstance(right, Items) and right.exact:
        if all(isinstance(part, Literal | Api) for part in right.items) and right.items:
            return Test("or", tuple(Test("eq", (left, part)) for part in right.items))
        return Symbol(f"({text(left)} in {text(right)})")
    if (
        isinstance(right, Literal)
        and isinstance(left, Literal)
        and isinstance(right.value, str)
        and isinstance(left.value, str)
    ):
        return Literal(left.value in right.value)
    if isinstance(right, Table) and right.exact and isinstance(left, Literal):
        return TRUE if right.get(left) is not None else FALSE
    return Symbol(f"({text(left)} in {text(right)})")
