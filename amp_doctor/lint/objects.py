"""What an expression can be known to be: abstract values, all immutable and hashable.

A `Symbol` is an unknown value with an identity: two mentions of `args.amp` are the same symbol, so what a
path has assumed about one holds for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_doctor.lint.trace import ClassDef, Function

HALF = "float16"
BF16 = "bfloat16"
FP32 = "float32"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant known in the source."""

    value: Any
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Symbol:
    """An unknown value; equal keys are equal values. `name` is its last written name."""

    key: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Api:
    """Something imported that is not first-party code: `torch.amp.GradScaler`, `torch.float16`."""

    name: str


@dataclass(frozen=True, slots=True)
class Code:
    """A first-party function, with the frame it closes over and the object it is bound to."""

    function: Function
    frame: int
    receiver: Value | None = None


@dataclass(frozen=True, slots=True)
class Class:
    """A first-party class."""

    definition: ClassDef
    frame: int


@dataclass(frozen=True, slots=True)
class Object:
    """Something made by a known constructor, or used as such.

    role: scaler, optimizer, module, scheduler, params, param, gradient, scale and state (of a scaler or optimizer);
    autocast, autocasted (what one wraps), mode and null for contexts; instance and super for first-party classes;
    device, finfo, iter.
    `oid` tells objects apart; `facts` are what the construction fixed; `origin` is constructed, annotated or used.
    """

    role: str
    oid: str
    api: str = ""
    facts: tuple[tuple[str, Value], ...] = ()
    origin: str = "constructed"
    at: int = field(default=0, compare=False)
    cls: Class | None = None

    def fact(self, name: str) -> Value | None:
        """What the construction fixed under this name, or None."""
        for key, value in self.facts:
            if key == name:
                return value
        return None

    def having(self, **facts: Value) -> Object:
        """The same object with other facts."""
        kept = tuple(pair for pair in self.facts if pair[0] not in facts)
        return replace(self, facts=tuple(sorted((*kept, *facts.items()), key=lambda pair: pair[0])))


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple or set; not `exact` when there may be more, or fewer, like these."""

    kind: str
    items: tuple[Value, ...]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A dict whose keys are known; not `exact` when other keys may exist."""

    pairs: tuple[tuple[Value, Value], ...]
    exact: bool = True
    at: int = field(default=0, compare=False)

    def get(self, key: Value) -> Value | None:
        """The value of a key, the last one written; None when it is not known."""
        for known, value in reversed(self.pairs):
            if known == key:
                return value
        return None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor.

    dtype: float16, bfloat16, float32 or None (unknown); `sure` is False for what a model of unknown make
    returned under autocast. `scaled` is the scaler whose loss scale it carries. `sources` are the modules
    that contributed. tags: fp16/bf16 (computed in such a region), output (of a model), loss, sigmoid,
    gradient (of autograd.grad), rescaled, detached, contraction, param.
    """

    dtype: str | None = None
    sure: bool = True
    scaled: str | None = None
    sources: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    at: int = field(default=0, compare=False)

    def tagged(self, *tags: str) -> Tensor:
        """The same tensor with more tags."""
        return replace(self, tags=self.tags | frozenset(tags))


@dataclass(frozen=True, slots=True)
class Partial:
    """`functools.partial(func, ...)`."""

    func: Value
    args: tuple[tuple[str | None, Value], ...]


@dataclass(frozen=True, slots=True)
class Method:
    """An attribute of something that is about to be called."""

    receiver: Value
    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Test:
    """A truth value made of others. op: not, and, or, none (is None), eq."""

    op: str
    parts: tuple[Value, ...]


Value = Literal | Symbol | Api | Code | Class | Object | Items | Table | Tensor | Partial | Method | Test

NONE = Literal(None)
TRUE = Literal(True)
FALSE = Literal(False)

DTYPES = {
    "torch.float16": HALF,
    "torch.half": HALF,
    "torch.bfloat16": BF16,
    "torch.float32": FP32,
    "torch.float": FP32,
    "torch.float64": "float64",
    "torch.double": "float64",
}


def dtype_of(value: Value | None) -> str | None:
    """The floating dtype a value names (`torch.half` -> float16), or None."""
    if isinstance(value, Api):
        return DTYPES.get(value.name)
    dtype, sure = dtype_like(value)
    return dtype if sure else None


def dtype_like(value: Value | None) -> tuple[str | None, bool]:
    """The dtype that `x.dtype` of a followed tensor names, and whether that is sure."""
    if isinstance(value, Symbol) and value.key.startswith("dtype("):
        name, _, rest = value.key[len("dtype(") :].partition(")")
        return name or None, not rest.startswith("?")
    return None, False


def text(value: Value | None) -> str:
    """A stable name for a value, used in the keys of what is assumed about it."""
    match value:
        case None:
            return "-"
        case Literal(constant):
            return repr(constant)
        case Symbol(key):
            return key
        case Api(name):
            return name
        case Object(_, oid):
            return oid
        case Code(function):
            return f"{function.module}:{function.name}@{function.at}"
        case Class(definition):
            return f"{definition.module}:{definition.name}"
        case Items(kind, items):
            return f"{kind}({','.join(text(item) for item in items)})"
        case Table(pairs):
            return f"dict({','.join(text(key) + ':' + text(item) for key, item in pairs)})"
        case Tensor(dtype, _, scaled):
            return f"tensor({dtype},{scaled})"
        case Method(receiver, name):
            return f"{text(receiver)}.{name}"
        case Test(op, parts):
            return f"{op}({','.join(text(part) for part in parts)})"
        case Partial(func):
            return f"partial({text(func)})"


def flat(value: Value | None) -> list[Value]:
    """The objects inside nested lists, tuples and dicts."""
    match value:
        case Items(_, items):
            return [inner for item in items for inner in flat(item)]
        case Table(pairs):
            return [inner for _, item in pairs for inner in flat(item)]
        case None:
            return []
        case _:
            return [value]
