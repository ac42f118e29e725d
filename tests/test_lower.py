"""Syntax to traces: what is evaluated, in which order, in every form Python 3.11 to 3.14 has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amp_doctor.lint import trace as t
from amp_doctor.lint.source import Source
from amp_doctor.lint.syntax import SyntaxFault
from amp_doctor.lint.syntax.parse import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.lint.project import Module


def module(code: str) -> Module:
    return parse(Source.from_text("a.py", code), 1)


def lowered(code: str) -> str:
    """The trace of a module, one leaf a line, compound ones with their bodies indented."""
    return "\n".join(lines(module(code).body))


def lines(trace: t.Trace, indent: str = "") -> Iterator[str]:
    inner = indent + "  "
    match trace:
        case t.Seq(items):
            for item in items:
                yield from lines(item, indent)
        case t.Stmt(_, body):
            yield from lines(body, indent)
        case t.Branch(_, test, then, other):
            yield f"{indent}if {text(test)}:"
            yield from lines(then, inner)
            if other.items:
                yield f"{indent}else:"
                yield from lines(other, inner)
        case t.Loop(_, head, test, target, source, body, other):
            yield f"{indent}for {text(target)} in {text(source)}:" if target else f"{indent}while {text(test)}:"
            yield from lines(head, indent + "? ")
            yield from lines(body, inner)
            if other.items:
                yield f"{indent}else:"
                yield from lines(other, inner)
        case t.Gather(_, temp, kind, target, source, body, element):
            yield f"{indent}{temp} = {kind} of {text(element)} for {text(target)} in {text(source)}:"
            yield from lines(body, inner)
        case t.Try(_, body, handlers, other, final):
            for word, part in [
                ("try", body),
                *(("except", each) for each in handlers),
                ("else", other),
                ("finally", final),
            ]:
                if word in ("try", "except") or part.items:
                    yield f"{indent}{word}:"
                    yield from lines(part, inner)
        case t.With(_, context, target, body):
            yield f"{indent}with {text(context)}" + (f" as {text(target)}:" if target else ":")
            yield from lines(body, inner)
        case t.Define(_, function):
            yield from definition(function, indent)
        case t.DefineClass(_, cls):
            marks = "".join(f"@{text(term)} " for term in cls.decorators)
            yield f"{indent}{marks}class {cls.name}({', '.join(map(text, cls.bases))}):"
            yield from lines(cls.body, inner)
        case _:
            yield indent + leaf(trace)


def definition(function: t.Function, indent: str) -> Iterator[str]:
    words = ["async"] * function.is_async + ["generator"] * function.is_generator
    marks = "".join(f"@{text(term)} " for term in function.decorators)
    yield f"{indent}{marks}{' '.join([*words, 'def'])} {function.name}({parameters(function)}):"
    yield from lines(function.body, indent + "  ")


def parameters(function: t.Function) -> str:
    shown = []
    for param in function.params:
        star = param.kind if param.kind in ("*", "**") else "/" if param.kind == "keyword" else ""
        note = f": {text(param.annotation)}" if param.annotation else ""
        shown.append(f"{star}{param.name}{note}" + (f"={text(param.default)}" if param.default else ""))
    return ", ".join(shown)


def leaf(trace: t.Trace) -> str:
    match trace:
        case t.Bind(_, target, value):
            return f"{text(target)} = {text(value)}"
        case t.Augment(_, target, op, value):
            return f"{text(target)} {op}= {text(value)}"
        case t.CallLeaf(_, temp, func, args, used):
            given = ", ".join(
                f"{key}{'' if key in ('*', '**') else '='}{text(v)}" if key else text(v) for key, v in args
            )
            return f"{temp} = {text(func)}({given})" if used else f"{text(func)}({given})"
        case t.Evaluate(_, value):
            return text(value)
        case t.Import(_, names):
            return "import " + ", ".join(f"{'.' * level}{full} as {local}" for local, full, level in names)
        case t.Forget(_, target):
            return f"forget {text(target)}"
        case t.Exit(_, kind, value):
            return f"{kind} {text(value)}" if value else kind
    raise AssertionError(trace)


def text(term: t.Term | None) -> str:
    match term:
        case None:
            return ":"
        case t.Name(_, name):
            return name
        case t.Const(_, value):
            return repr(value)
        case t.Attr(_, base, name):
            return f"{text(base)}.{name}"
        case t.Item(_, base, index):
            return f"{text(base)}[{', '.join(map(text, index))}]"
        case t.Display(_, kind, items):
            return f"{kind}({', '.join(map(text, items))})"
        case t.Star(_, value):
            return f"*{text(value)}"
        case t.Mapping(_, pairs):
            return "{" + ", ".join(f"{text(k)}: {text(v)}" if k else f"**{text(v)}" for k, v in pairs) + "}"
        case t.Binary(_, op, left, right):
            return f"({text(left)} {op} {text(right)})"
        case t.Unary(_, op, operand):
            return f"({op} {text(operand)})"
        case t.Compare(_, op, left, right):
            return f"({text(left)} {op} {text(right)})"
        case t.Boolean(_, op, items):
            return "(" + f" {op} ".join(map(text, items)) + ")"
        case t.Closure(_, function):
            body = "; ".join(line.strip() for line in lines(function.body))
            return f"<lambda {parameters(function)}: {body}>"
        case t.Opaque(_, parts, said):
            return f"?({', '.join([*map(text, parts), *map(repr, said)])})"
    raise AssertionError(term)


CASES: dict[str, tuple[str, str]] = {
    "operators": ("x = a.b[0, 1:2, ...] + -c * 2", "x = (a.b[0, :, Ellipsis] Add ((Minus c) Multiply 2))"),
    "arguments are called in order": (
        "f(g(1), *h(2), k=i(3), **j(4))",
        "%1 = g(1)\n%2 = h(2)\n%3 = i(3)\n%4 = j(4)\nf(%1, *%2, k=%3, **%4)",
    ),
    "a receiver is called before the arguments": (
        "a(b()).c(d())",
        "%1 = b()\n%2 = a(%1)\n%3 = d()\n%2.c(%3)",
    ),
    "the value comes before the target": ("a[f()].b = g()", "%1 = g()\n%2 = f()\na[%2].b = %1"),
    "several targets": ("x = y = f()", "%1 = f()\nx = %1\ny = %1"),
    "unpacking": ("a, *b = f()", "%1 = f()\ntuple(a, *b) = %1"),
    "augmented": ("a.b += f(y())", "%1 = y()\n%2 = f(%1)\na.b Add= %2"),
    "annotated: the annotation is not evaluated": ("x: int = f()\ny: list[g()]", "%1 = f()\nx = %1"),
    "bounds of a slice": ("y = x[f() : g() : h()]", "%1 = f()\n%2 = g()\n%3 = h()\ny = x[:]"),
    "literals": (
        "x = (1, 2.5, 3j, 0x1F, 1_0, ..., b'x', True, None)",
        "x = tuple(1, 2.5, 3j, 31, 10, Ellipsis, b'x', True, None)",
    ),
    "displays": (
        'x = [*a, *b()]\ny = {**c, "d": e()}\nz = {1, f()}',
        "%1 = b()\nx = list(*a, *%1)\n%2 = e()\ny = {**c, 'd': %2}\n%3 = f()\nz = set(1, %3)",
    ),
    "a choice runs one arm": (
        "x = f() if t() else g()",
        "%1 = t()\nif %1:\n  %3 = f()\n  %2 = %3\nelse:\n  %4 = g()\n  %2 = %4\nx = %2",
    ),
    "and without calls is a term": ("x = a and b", "x = (a and b)"),
    "and, or: the right side may not run": (
        "x = a() and b() or c()",
        "%1 = a()\n%3 = %1\nif %3:\n  %2 = b()\n  %3 = %2\n%5 = %3\nif %5:\nelse:\n  %4 = c()\n  %5 = %4\nx = %5",
    ),
    "a chain of comparisons": ("x = a < b() <= c", "%1 = b()\nx = ((a < %1) and (%1 <= c))"),
    "walrus": ("x = (a := f()) + a", "%1 = f()\na = %1\nx = (a Add a)"),
    "walrus in the test of a while": (
        "while (n := f()):\n    g(n)\nelse:\n    h()",
        "while n:\n? %1 = f()\n? n = %1\n  g(n)\nelse:\n  h()",
    ),
    "for": (
        "for i, x in enumerate(y):\n    if i: continue\n    break\nelse:\n    z()",
        "%1 = enumerate(y)\nfor tuple(i, x) in %1:\n  if i:\n    continue\n  break\nelse:\n  z()",
    ),
    "elif": (
        "if a: f(); g()\nelif b(): h()\nelse: i()",
        "if a:\n  f()\n  g()\nelse:\n  %3 = b()\n  if %3:\n    h()\n  else:\n    i()",
    ),
    "comprehension": (
        "z = [f(x) for x in g() if h(x) for y in x.k()]",
        "%2 = g()\n%1 = list of *%4 for x in %2:\n  %3 = h(x)\n  %5 = x.k()\n  %4 = list of %6 for y in %5:\n    %6 = f(x)\nz = %1",
    ),
    "dict comprehension": (
        "z = {k(v): v for v in w}",
        "%1 = dict of tuple(%2, v) for v in w:\n  %2 = k(v)\nz = %1",
    ),
    "generator expression": ("any(f(x) for x in y)", "%1 = list of %2 for x in y:\n  %2 = f(x)\nany(%1)"),
    "with": (
        "with a() as b, c(d()) as (e, f):\n    g()",
        "%1 = a()\nwith %1 as b:\n  %2 = d()\n  %3 = c(%2)\n  with %3 as tuple(e, f):\n    g()",
    ),
    "with in brackets": (
        'with (\n    open("a") as b,\n    c,\n):\n    pass',
        "%1 = open('a')\nwith %1 as b:\n  with c:",
    ),
    "try": (
        "try:\n    f()\nexcept A:\n    g()\nexcept (B, C) as e:\n    h(e)\nelse:\n    i()\nfinally:\n    j()",
        "try:\n  f()\nexcept:\n  g()\nexcept:\n  forget e\n  h(e)\nelse:\n  i()\nfinally:\n  j()",
    ),
    "except without brackets (3.14)": (
        "try:\n    f()\nexcept A, B:\n    g()",
        "try:\n  f()\nexcept:\n  g()",
    ),
    "except* (3.11)": (
        "try:\n    f()\nexcept* A as group:\n    g()\nexcept* B, C:\n    h()",
        "try:\n  f()\nexcept:\n  forget group\n  g()\nexcept:\n  h()",
    ),
    "an import with a fallback succeeds": (
        "try:\n    import apex\n    has = True\nexcept ImportError:\n    has = False",
        "import apex as apex\nhas = True\nforget has",
    ),
    "raise": ("raise E(f()) from g", "%1 = f()\n%2 = E(%1)\nraise"),
    "assert": ("assert f(), x", "%1 = f()\nif %1:\nelse:\n  raise"),
    "del": ("del a, b.c, d[0]", "forget a\nforget b.c\nforget d[0]"),
    "imports": (
        "import a.b, c.d as e\nfrom . import f\nfrom ..g.h import i as j, k\nfrom l import *",
        "import a as a, c.d as e\nimport .f as f\nimport ..g.h.i as j, ..g.h.k as k",
    ),
    "global": ("def f():\n    global x\n    x = 1", "def f():\n  x%global = True\n  x = 1"),
    "parameters of every kind": (
        "def f(a, /, b: int = g(), *c, d=1, **e) -> h():\n    yield a\n    return b",
        "%2 = g()\ngenerator def f(a, b: int=%2, *c, /d=1, **e):\n  ?(a)\n  return b",
    ),
    "decorators": (
        "@a\n@b.c(d())\ndef f(): ...",
        "%1 = d()\n%2 = b.c(%1)\n@a @%2 def f():\n  Ellipsis",
    ),
    "class": (
        "@dataclass\nclass A(B, C(), metaclass=D):\n    x = 1\n    @property\n    def y(self): return self.x",
        "%1 = C()\n@dataclass class A(B, %1):\n  x = 1\n  @property def y(self):\n    return self.x",
    ),
    "lambda": (
        "g = lambda x, y=f(), *a, **k: h(x)",
        "%1 = f()\ng = <lambda x, y=%1, *a, **k: %2 = h(x); return %2>",
    ),
    "async": (
        """\
async def f(x):
    async with g() as h:
        await i()
    async for j in k():
        await l
    return [m async for m in n()]""",
        """\
async def f(x):
  %1 = g()
  with %1 as h:
    %2 = i()
    %2
  %3 = k()
  for j in %3:
    l
  %5 = n()
  %4 = list of m for m in %5:
  return %4""",
    ),
    "yield from and await": (
        "def f():\n    x = yield from g()\n    y = await h()",
        "generator def f():\n  %1 = g()\n  x = ?(%1)\n  %2 = h()\n  y = %2",
    ),
    "type parameters and aliases (3.12, defaults 3.13)": (
        "def f[T: int, *Ts, **P](x: T) -> T:\n    return x\nclass A[T = int](B[T]): ...\ntype X[T] = list[T]",
        "def f(x: T):\n  return x\nclass A(B[T]):\n  Ellipsis",
    ),
    "f-string": (
        "x = f\"{a!r:>{w()}}, {b()=} {f'{c()}'}\"",
        "%1 = w()\n%2 = b()\n%3 = c()\nx = ?(a, %1, %2, ?(%3), ', ', ' ')",
    ),
    "f-string with its own quotes and newlines (3.12)": (
        "x = f'{d['a']} {'\\n'.join(\n    e()  # why\n)}'",
        "%1 = e()\n%2 = '\\n'.join(%1)\nx = ?(d['a'], %2, ' ')",
    ),
    "strings side by side": ('x = "a" "b"\ny = "cuda:" f"{i()}"', "x = 'ab'\n%1 = i()\ny = ?('cuda:', ?(%1), 'cuda:')"),
    "t-string (3.14)": ('x = t"{a()} b"', "%1 = a()\nx = ?(%1)"),
    "match": (
        """\
match f():
    case 1 | 2 as z:
        a()
    case None if g():
        b()
    case {"k": v, **rest} if v:
        c()
    case [p, *q] as r:
        d()
    case A(x=1) | torch.half:
        e()
    case other:
        h()""",
        """\
%1 = f()
if ((%1 == 1) or (%1 == 2)):
  z = %1
  a()
else:
  %3 = g()
  if ((%1 is None) and %3):
    b()
  else:
    forget rest
    forget v
    if (?() and v):
      c()
    else:
      if ?():
        forget p
        forget q
        r = %1
        d()
      else:
        if (?() or (%1 == torch.half)):
          e()
        else:
          other = %1
          h()""",
    ),
    "match with a guard on what it captures": (
        "match x:\n    case y if y > 1: f()\n    case _: g()",
        "y = x\nif (y > 1):\n  f()\nelse:\n  g()",
    ),
    "docstrings and comments": ('"""Doc."""\n# comment\n"x" "y"\n', ""),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("code", "expected"), CASES.values(), ids=CASES)
def test_trace_of(code: str, expected: str) -> None:
    assert lowered(code) == expected


def test_the_temporaries_of_a_statement_come_after_those_around_it() -> None:
    """`Stmt.temps` is how many came before: those are kept when the statement ends."""

    def check(trace: t.Trace, before: int) -> None:
        match trace:
            case t.Stmt(_, body, temps):
                assert temps >= before
                check(body, temps)
            case t.Seq(items):
                for item in items:
                    check(item, before)
            case t.Loop(_, _, _, _, _, body, _) | t.With(_, _, _, body):
                check(body, before)
            case t.CallLeaf(_, temp, _, _):
                assert int(temp[1:]) > before

    check(module("f(g())\nfor x in h():\n    i(j())\n    with k(): l()\nm()").body, 0)


def test_nodes_are_numbered_by_module() -> None:
    first, second = parse(Source.from_text("a.py", "f(x)"), 1), parse(Source.from_text("b.py", "f(x)"), 2)
    for lowered_module in (first, second):
        (statement,) = lowered_module.body.items
        assert isinstance(statement, t.Stmt)
        assert statement.at // 10_000_000 == lowered_module.number


def test_what_a_function_says() -> None:
    made = module(
        "class A:\n    def f(self, x):\n        def g(): return self.scaler\n        return x.half(key=1)\n    def h(self): ..."
    )
    (definition,) = made.classes
    assert list(definition.methods) == ["f", "h"]
    assert definition.methods["f"].words >= {"self", "scaler", "x", "half", "key"}
    assert [function.name for function in made.functions] == ["g", "f", "h"]
    assert made.functions[0].owner is None
    assert made.functions[1].owner is definition


def test_methods_called_on_a_name_are_its_uses() -> None:
    made = module("self.scaler.scale(x)\nscaler.update()\nf().step()")
    assert made.uses == {"scaler": {"scale", "update"}}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from torch.cuda.amp import autocast", [("torch.cuda.amp.autocast", "from-import", False)]),
        ("import torch\nwith torch.autocast('cuda'): pass", [("torch.autocast", "call", False)]),
        (
            "import torch.cuda.amp as amp\namp.GradScaler()",
            [("torch.cuda.amp", "import", False), ("torch.cuda.amp.GradScaler", "call", False)],
        ),
        (
            "import torch\ndef f(s: torch.cuda.amp.GradScaler): ...",
            [("torch.cuda.amp.GradScaler", "annotation", False)],
        ),
        ("import torch\n@torch.autocast\ndef f(): ...", [("torch.autocast", "decorator", False)]),
        ("import torch\nisinstance(x, torch.cuda.amp.GradScaler)", [("torch.cuda.amp.GradScaler", "instance", False)]),
        ("import torch\nx = torch.autocast", [("torch.autocast", "name", False)]),
        (
            "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast",
            [("torch.amp.autocast", "from-import", False), ("torch.cuda.amp.autocast", "from-import", True)],
        ),
        (
            "import torch\nif torch.__version__ >= '2.4':\n    a = torch.amp.GradScaler\nelse:\n    a = torch.cuda.amp.GradScaler",
            [("torch.amp.GradScaler", "name", True), ("torch.cuda.amp.GradScaler", "name", True)],
        ),
        (
            "import torch\nx = getattr(torch.amp, 'GradScaler', torch.cuda.amp.GradScaler)",
            [("torch.amp", "name", True), ("torch.cuda.amp.GradScaler", "name", True)],
        ),
        ("import numpy as torch\ntorch.autocast('cuda')", []),
        ("def autocast(x): ...\nautocast('cuda')", []),
    ],
)
def test_references(code: str, expected: list[tuple[str, str, bool]]) -> None:
    found = [(reference.name, reference.how, reference.guarded) for reference in module(code).references]
    assert found == expected


@pytest.mark.parametrize(
    "code", ["x = (\n", "a = 1\nif a\n    b\n", "\n\nclass\n", "print 'x'\n", "def f():\nreturn 1\n"]
)
def test_a_fault_has_a_place(code: str) -> None:
    with pytest.raises(SyntaxFault) as fault:
        module(code)
    assert 1 <= fault.value.line <= code.count("\n") + 1
    assert fault.value.column >= 1
    assert fault.value.message
