"""Nothing that is Python brings the linter down, and nothing that means the same is judged otherwise."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amp_doctor.errors import ReadError
from amp_doctor.lint.analyse import analyse
from amp_doctor.lint.examine import examine
from amp_doctor.lint.machine import telling
from amp_doctor.lint.project import Project
from amp_doctor.lint.source import read_source
from amp_doctor.lint.syntax import SyntaxFault, prune
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amp_doctor.finding import Finding

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
# Big enough to say something, quick enough to run each time; with EVERY = 1 all of it passes as well.
EVERY = 3
PARTS = 6

SCRIPTS = sorted((ROOT / "fixtures" / "scripts").glob("*.py"))
CASES = sorted((ROOT / "fixtures" / "cases").rglob("*.py"))
PROJECT = sorted((ROOT / "fixtures" / "scripts" / "project").rglob("*.py"))
TEXTS = {path.relative_to(ROOT / "fixtures").as_posix(): path.read_text("utf-8") for path in (*SCRIPTS, *CASES)}
NAMES = st.sampled_from(sorted(TEXTS))

# The spelling of these is evidence: an unknown object that is called `optimizer` is taken for one.
EVIDENCE = re.compile(
    r"scal|opt|loss|criterion|grad|amp|half|fp16|bf16|float|model|device|dtype|rank|local|master|eps|step|skip|mask"
    r"|^rows$|^cols$|^self$|^cls$",
    re.IGNORECASE,
)

steady = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def standard_library() -> list[Path]:
    found = (path for path in STANDARD_LIBRARY.rglob("*.py") if "site-packages" not in path.parts)
    return sorted(found)[::EVERY]


def found(code: str) -> list[Finding]:
    report = examine(code.encode(), "a.py", None, Project())
    assert report.error is None
    crashed = [finding.message for finding in report.findings if finding.code == "AMP003"]
    assert crashed == []
    return list(report.findings)


def places(code: str) -> Counter[tuple[str, int, str]]:
    return Counter((finding.code, finding.span.line, finding.message) for finding in found(code))


def codes(code: str) -> Counter[tuple[str, int]]:
    return Counter((finding.code, finding.span.line) for finding in found(code))


# --- the standard library ------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(PARTS))
def test_the_standard_library(part: int) -> None:
    """As the linter reads it: without a crash and, as it trains nothing, without a finding."""
    for path in standard_library()[part::PARTS]:
        assert (read(path) or []) == [], path


@pytest.mark.parametrize("part", range(PARTS))
def test_the_standard_library_taken_for_training_code(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function is an entry and every line matters: the interpreter meets all that Python can say."""
    monkeypatch.setattr(prune, "SMALL", 10**9)
    monkeypatch.setattr(telling, "rooted", bool)
    monkeypatch.setattr(telling, "strong", bool)
    for path in standard_library()[part :: PARTS * 8]:
        assert "AMP003" not in (read(path) or []), path


@pytest.fixture(autouse=True, scope="module")
def deep_recursion() -> Iterator[None]:
    """As in the processes that lint."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(8 * usual)
    yield
    sys.setrecursionlimit(usual)


def read(path: Path) -> list[str] | None:
    """The codes of the findings, None for a file that is no Python (on purpose, for a test)."""
    try:
        return [finding.code for finding in analyse(read_source(path), Project()).findings]
    except (SyntaxFault, ReadError):
        assert {"test", "tests", "lib2to3"} & set(path.parts)
        return None


DEEP = {
    "elif": "if x == 0: pass\n" + "".join(f"elif x == {n}: y = {n}\n" for n in range(300)),
    "sum": "x = " + " + ".join(["a"] * 300),
    "and": "x = " + " and ".join(["a"] * 300),
    "strings": "x = (" + "\n".join(["'a'"] * 300) + ")",
    "f-strings": "x = (" + "\n".join(["f'{a}'"] * 300) + ")",
    "methods": "x = a" + ".f()" * 200,
    "choices": "x = " + "a if b else " * 200 + "c",
    "lambdas": "x = " + "lambda: " * 90 + "1",
    "contexts": "with " + ", ".join(["a"] * 200) + ": pass",
    "brackets": "x = " + "[" * 150 + "]" * 150,
}


@pytest.mark.parametrize("name", DEEP)
def test_long_chains_are_read(name: str) -> None:
    code = f"import torch\nscaler = torch.cuda.amp.GradScaler()\n{DEEP[name]}\n"
    assert [finding.code for finding in found(code)] == ["AMP102"]


CIRCLES = {
    "a property of itself": "    @property\n    def loss(self): return self.loss\n",
    "properties of each other": "    @property\n    def loss(self): return self.x\n    @property\n    def x(self): return self.loss\n",
    "a method of itself": "    def loss(self): return self.loss()\n",
    "methods of each other": "    def loss(self): return self.x()\n    def x(self): return self.loss()\n",
    "a list of itself": "    loss = []\n    loss.append(loss)\n",
    "an attribute of itself": "    def set(self):\n        self.loss = self\n        self.loss.loss = self.loss\n",
}


@pytest.mark.parametrize("name", CIRCLES)
def test_circles_end(name: str) -> None:
    code = f"""\
import torch
class Base(Base): ...
class Trainer(Base, Trainer):
    def __init__(self, optimizer):
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = optimizer
{CIRCLES[name]}
    def step(self):
        self.scaler.scale(self.loss).backward()
        self.scaler.scale(self.loss()).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step()
"""
    assert "AMP201" in [finding.code for finding in found(code)]


# --- changes that may change everything, but break nothing ----------------------------------------


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A fixture some of whose lines are dropped, doubled or swapped."""
    lines = TEXTS[draw(NAMES)].split("\n")
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 2))
        other = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "double", "swap", "dedent", "cut"])):
            case "drop":
                del lines[place]
            case "double":
                lines.insert(place, lines[place])
            case "swap":
                lines[place], lines[other] = lines[other], lines[place]
            case "dedent":
                lines[place] = lines[place][4:]
            case "cut":
                lines[place] = lines[place][: len(lines[place]) // 2]
        if len(lines) < 3:
            break
    return "\n".join(lines)


@steady
@given(damaged())
def test_damage_breaks_nothing(code: str) -> None:
    findings = found(code)
    lines = code.count("\n") + 1
    assert all(1 <= finding.span.line <= lines for finding in findings)
    if any(finding.code == "AMP001" for finding in findings):
        assert len(findings) == 1, "a file that does not parse has no other finding"


class Swap(ast.NodeTransformer):
    """Swaps the arms of the `if` statements at the given positions, and negates their tests if told to."""

    def __init__(self, chosen: set[int], negate: bool) -> None:
        self.chosen = chosen
        self.negate = negate
        self.count = 0

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        self.count += 1
        if node.orelse and self.count in self.chosen:
            node.body, node.orelse = node.orelse, node.body
            if self.negate:
                node.test = ast.UnaryOp(ast.Not(), node.test)
        return node


def swapped(name: str, chosen: set[int], negate: bool) -> str:
    tree = ast.parse(TEXTS[name])
    return ast.unparse(ast.fix_missing_locations(Swap(chosen, negate).visit(tree)))


@steady
@given(NAMES, st.sets(st.integers(1, 6), min_size=1))
def test_swapped_branches_break_nothing(name: str, chosen: set[int]) -> None:
    found(swapped(name, chosen, negate=False))


# --- changes that mean the same -------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_line_endings_change_nothing(name: str, newline: str) -> None:
    assert places(TEXTS[name].replace("\n", newline)) == places(TEXTS[name])


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_comments_and_blank_lines_change_no_code(name: str) -> None:
    code = TEXTS[name]
    moved = "# first\n\n" + re.sub(r"\n(?=(def|class) )", "\n\n# between\n", code)
    assert Counter(f.code for f in found(moved)) == Counter(f.code for f in found(code))


@steady
@given(NAMES, st.sets(st.integers(1, 6), min_size=1))
def test_swapped_branches_with_negated_tests_change_no_code(name: str, chosen: set[int]) -> None:
    def counted(code: str) -> Counter[str]:
        return Counter(finding.code for finding in found(code))

    assert counted(swapped(name, chosen, negate=True)) == counted(swapped(name, set(), negate=False))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_consistent_renaming_changes_no_code(name: str) -> None:
    code = TEXTS[name]
    renamed, names = with_new_names(code)
    if names:
        assert codes(renamed) == codes(code), names


def with_new_names(code: str) -> tuple[str, list[str]]:
    """The text with every variable renamed whose name is only that, and the names that were changed."""
    tree = ast.parse(code)
    bound: set[str] = set()
    taken = {*dir(builtins), *keyword.kwlist, *keyword.softkwlist}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name):
                bound.add(name)
            case ast.Attribute(_, name) | ast.FunctionDef(name) | ast.ClassDef(name):
                taken.add(name)
            case ast.keyword(str() as name):
                taken.add(name)
            case ast.alias(name, other):
                taken |= {other or "", *name.split(".")}
            case ast.Global(names) | ast.Nonlocal(names):
                taken |= set(names)
            case ast.Constant(str() as word):
                taken |= set(re.findall(r"\w+", word))
    chosen = sorted(name for name in bound - taken if not EVIDENCE.search(name))
    new = {name: f"thing{number}" for number, name in enumerate(chosen)}
    out = []
    end = (1, 0)
    lines = code.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME and token.string in new:
            out += [between(lines, end, token.start), new[token.string]]
            end = token.end
    return "".join([*out, between(lines, end, (len(lines), len(lines[-1])))]), chosen


def between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    middle = lines[start[0] : end[0] - 1]
    return "\n".join([lines[start[0] - 1][start[1] :], *middle, lines[end[0] - 1][: end[1]]])


# --- several files --------------------------------------------------------------------------------


@settings(max_examples=6, derandomize=True, deadline=None, database=None)
@given(st.permutations([*PROJECT, *SCRIPTS[:6]]), st.booleans())
def test_the_order_of_files_changes_nothing(order: list[Path], together: bool) -> None:
    """Whether in one process that remembers the modules it read, or each on its own."""
    shared = Project((PROJECT[0].parent,))
    for path in order:
        project = shared if together else Project((PROJECT[0].parent,))
        report = examine(path.read_bytes(), str(path), path, project)
        assert report == ALONE.setdefault(
            path, examine(path.read_bytes(), str(path), path, Project((PROJECT[0].parent,)))
        ), path


ALONE: dict[Path, object] = {}
