"""Large files are shortened before they are parsed: nothing telling is lost, and every place stays true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_doctor.lint.source import Source, line_starts
from amp_doctor.lint.syntax import SyntaxFault
from amp_doctor.lint.syntax.parse import parse
from amp_doctor.lint.syntax.prune import prune
from tests.conftest import fix_text, lint_text
from tests.inline import mismatches

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = "import torch\nimport torch.nn.functional as F\n\n"
PADDING = "".join(f"def padding_{n}(values, other):\n    return values + other\n\n\n" for n in range(12))


@pytest.fixture(autouse=True, scope="module")
def cut_sooner() -> Iterator[None]:
    """The sizes from which on a file is cut, in proportion to these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amp_doctor.lint.syntax.prune.SMALL", len(HEAD + STEP) + 1)
        patch.setattr("amp_doctor.lint.syntax.prune.TRAINING", len(HEAD + STEP) + 1)
        yield


STEP = """\
def step(model, x, y, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201: still multiplied by the loss scale
    scaler.step(optimizer)
    scaler.update()


"""
# What stands in the file beside STEP; none of it has to do with mixed precision, and none may break the cut.
OTHERS = {
    "decorators over several lines": """\
@decorate(
    first,
    second=(
        1,
    ),
)
# a comment between them
@plain

def decorated(x):
    return x


""",
    "a string that looks like code": '''\
def template(name):
    text = """
def step(model):
    scaler = 1
class Inner:
"""
    return text.format(name)


''',
    "strings at the margin": '''\
TEXT = """
    def inner():
class A:
"""


''',
    "quotes in quotes": """\
def quotes(text):
    if text.startswith("'''") or text.endswith('\\"\\"\\"'):
        return text[3:]  # not \"\"\" nor '''
    return text


""",
    "a string closed and another opened": '''\
def joined(x):
    return """
one""" + x + """
two"""


''',
    "nested classes": """\
class Outer:
    \"\"\"Doc.\"\"\"

    class Inner:
        def method(self):
            return 1

        class Deep:
            value = 2

    def other(self):
        def local():
            return 3

        return local


""",
    "tabs": "class Tabs:\n\tdef one(self):\n\t\treturn 1\n\n\tdef two(self):\n\t\tif self:\n\t\t\treturn 2\n\n\n",
    "a form feed on its own line": "\f\ndef fed(x):\n    return x\n\n\n",
    "a form feed before a def": "\fdef fed_too(x):\n    return x\n\n\n",
    "a form feed inside a line": "def fed_inside(x):\n    return \f x\n\n\n",
    "other line separators in strings": "def separators(x):\n    return x.split('\x0b \x1c \x85 \u2028 \u2029')\n\n\n",
    "an argument at the margin": "def margin(\nx,\ny=1,\n):\n    return x\n\n\n",
    "brackets at the margin": "def brackets(x):\n    return [\nx,\n]\n\n\n",
    "a continued line at the margin": "def continued(x):\n    y = x + \\\n1\n    return y\n\n\n",
    "one-liners": "def short(x): return x\nclass Empty: ...\nasync def also(x): return x\n\n\n",
    "a def under an if": "if torch:\n    def chosen(x):\n        return x\nelse:\n    def chosen(x):\n        return -x\n\n\n",
    "a def in a try": "try:\n    import numpy\nexcept ImportError:\n    class numpy:\n        pass\n\n\n",
    "async and types": "async def typed[T](x: T) -> T:\n    return x\n\n\nclass Generic[T = int]:\n    value: T\n\n\n",
    "a comment at the margin": "def commented(x):\n    y = x\n# comment\n    return y\n\n\n",
    "letters of several bytes": "def größe(x):\n    return 'äöü 漢字 🙂'\n\n\n",
}


def places(code: str) -> list[str]:
    return mismatches(code, lint_text(code), "a.py")


def test_a_small_file_is_left_alone() -> None:
    code = HEAD + STEP
    assert prune(code).code is code
    assert prune(code).lines is None


def test_a_large_file_is_shortened_and_lines_stay_the_same_letter_by_letter() -> None:
    code = HEAD + PADDING + STEP + PADDING
    pruned = prune(code)
    assert pruned.lines is not None
    assert len(pruned.code) < len(code) / 2
    lines = code.split("\n")
    kept = pruned.code.split("\n")
    for line, number in zip(kept, pruned.lines, strict=False):
        assert line == lines[number - 1] or (line == "pass" and lines[number - 1].startswith("def padding_"))
    assert pruned.lines == sorted(pruned.lines)
    assert STEP.splitlines()[5] in kept


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=repr)
@pytest.mark.parametrize("name", OTHERS)
def test_places_are_true_whatever_stands_before_and_after(name: str, newline: str) -> None:
    other = OTHERS[name]
    code = HEAD + PADDING + other + STEP + other + PADDING
    assert places(code.replace("\n", newline)) == []


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_telling_does_not_keep_the_file_whole(name: str) -> None:
    """The whole text is a fallback that costs a second; these forms are common enough to be cut well."""
    margin = {"an argument at the margin", "brackets at the margin", "a continued line at the margin"}
    code = HEAD + PADDING * 12 + OTHERS[name] + STEP
    pruned = prune(code)
    assert pruned.lines is not None
    assert len(pruned.code) < len(code) / 4
    if name not in margin:
        parse(Source.from_text("a.py", pruned.code), 1)


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(st.lists(st.sampled_from([*OTHERS.values(), STEP, PADDING]), max_size=8), st.sampled_from(["\n", "\r\n", "\r"]))
def test_any_order_of_them(parts: list[str], newline: str) -> None:
    renamed = [part.replace("def step(", f"def step_{n}(") for n, part in enumerate(parts)]
    code = HEAD + "".join(renamed) + PADDING
    assert places(code.replace("\n", newline)) == []


def test_a_method_keeps_its_class_and_its_init() -> None:
    trainer = '''\
class Trainer(Base):
    """Trains."""

    def __init__(self, model):
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model = model

    def describe(self):
        return f"Trainer({self.model})"

    @property
    def rate(self):
        return self.optimizer.param_groups[0]["lr"]

    def step(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.finish()

    def finish(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
'''
    code = HEAD + PADDING + trainer
    pruned = prune(code)
    assert pruned.lines is not None
    for part in ("def __init__", "def step", "def finish", '"""Trains."""'):
        assert part in pruned.code
    for part in ("def describe", "def rate", "def padding"):
        assert part not in pruned.code
    (finding,) = lint_text(code)
    alone = lint_text(HEAD + trainer)
    assert [f.code for f in alone] == [finding.code] == ["AMP201"]
    assert finding.span.line - alone[0].span.line == PADDING.count("\n")


def test_what_a_telling_function_calls_is_kept() -> None:
    helper = "def helper(scaled):\n    return scaled * 2\n\n\n"
    caller = "def caller(x):\n    return helper(x.half())\n\n\n"
    assert "def helper" in prune(HEAD + PADDING + helper + caller).code
    assert "def helper" not in prune(HEAD + PADDING + helper + caller.replace("helper(", "other(")).code


def test_a_file_that_only_talks_about_it_is_empty() -> None:
    talk = '"""Use autocast and a GradScaler."""\n# scaler.unscale_(optimizer)\n'
    assert prune(talk + PADDING).lines == []
    assert lint_text(talk + PADDING) == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=repr)
@pytest.mark.parametrize("name", OTHERS)
def test_a_fix_lands_on_the_right_bytes(name: str, newline: str) -> None:
    around = HEAD + PADDING + OTHERS[name], OTHERS[name] + PADDING
    fixed = fix_text(HEAD + STEP)
    assert fixed != HEAD + STEP
    expected = around[0] + fixed.removeprefix(HEAD) + around[1]
    code = around[0] + STEP + around[1]
    assert fix_text(code.replace("\n", newline)) == expected.replace("\n", newline)


@pytest.mark.parametrize(
    "broken",
    [
        "def margin(\nx,\ny=1,\n):\n    return x\n\n\n",
        "def continued(x):\n    y = x + \\\n1\n    return y\n\n\n",
        "@decorate(\n1,\n)\ndef decorated(x):\n    return x\n\n\n",
    ],
)
def test_a_broken_cut_falls_back_to_the_whole_text(broken: str) -> None:
    code = HEAD + PADDING + broken + STEP.replace(".backward()", ".bwd()")
    cut = prune(code)
    assert cut.lines is not None
    with pytest.raises(SyntaxFault):
        parse(Source.from_text("a.py", cut.code), 1)
    module = parse(Source.from_text("a.py", code), 1)
    assert [function.name for function in module.functions][-1] == "step"


def test_a_fault_in_the_file_is_told_by_the_whole_text() -> None:
    code = HEAD + PADDING + STEP + "x = = 1\n"
    (finding,) = lint_text(code)
    assert finding.code == "AMP001"
    assert finding.span.line == len(line_starts(code)) - 1


def test_long_tables_of_a_huge_file_are_left_out() -> None:
    rows = "".join(f"    'k{n}': [{n}, -{n}.5e-3, None],\n" for n in range(20_000))
    call = "def f(model, x):\n    with torch.cuda.amp.autocast(\n        False,\n    ):\n        return model(x)\n"
    code = f"import torch\nTABLE = {{\n{rows}}}\n{call}"
    pruned = prune(code)
    assert pruned.code == f"import torch\nTABLE = {{\n}}\n{call}"
    assert pruned.lines == [1, 2, 20_003, 20_004, 20_005, 20_006, 20_007, 20_008]
