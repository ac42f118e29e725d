"""What is a switch, judged by its value or by its name: `use_amp`, `args.fp16`, `not debug`, True."""

from __future__ import annotations

import re

from amp_doctor.lint.objects import Literal, Symbol, Test, Value
from amp_doctor.lint.trace import Attr, Boolean, Compare, Const, Name, Term, Unary

_FLAG = re.compile(
    r"(^|_)(amp|fp16|bf16|autocast|enabled?|disabled?|mixed)($|_)"
    r"|^(use|is|no|with|enable|disable|do|should|has)_|^mixed_precision$"
)
_NOT_FLAG = re.compile(
    r"d?type|device|scale|level|opt|mode|backend|config|cfg|context|ctx|init|factor|growth|backoff|interval|name|kwargs"
)


def flag_name(name: str) -> bool:
    """The name says on or off."""
    return _FLAG.search(name.lower()) is not None and _NOT_FLAG.search(name.lower()) is None


def flag_value(value: Value | None) -> bool:
    """The value is a truth value, or a symbol whose name says so."""
    match value:
        case Literal(constant):
            return isinstance(constant, bool)
        case Symbol(key, name):
            return flag_name(name) and "(" not in key
        case Test("and" | "or", parts):
            return all(flag_value(part) for part in parts)
        case Test():
            return True
        case _:
            return False


def flag_term(term: Term) -> bool:
    """The same for what is written."""
    match term:
        case Const(_, constant):
            return isinstance(constant, bool)
        case Name(_, name) | Attr(_, _, name):
            return flag_name(name)
        case Compare():
            return True
        case Unary(_, op, _):
            return op == "Not"
        case Boolean(_, _, parts):
            return all(flag_term(part) for part in parts)
        case _:
            return False
