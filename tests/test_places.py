"""Node numbers to places: characters, bytes, statements and lines, whatever the text is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_doctor.finding import Span
from amp_doctor.lint import trace as t
from amp_doctor.lint.source import Source, text_of
from amp_doctor.lint.syntax.parse import parse

if TYPE_CHECKING:
    from amp_doctor.lint.syntax.places import Places

CODE = """\
# ünïcödé 🙂
def größe(x):
    y = "漢字"; z = call(x, "🙂", key=y)  # a comment
    for item in z: use(item)
    while test():
        return outer(
            inner(x),
        )
    if x: alone(); together()
"""


def places(code: str) -> tuple[Places, dict[str, int]]:
    """The places of a text, and the node of each call in it by the name of what it calls."""
    module = parse(Source.from_text("a.py", code), 1)
    calls = {}
    for function in module.functions:
        for leaf in leaves(function.body):
            if isinstance(leaf, t.CallLeaf) and isinstance(leaf.func, t.Name):
                calls[leaf.func.id] = leaf.at
    result: Places = module.places
    return result, calls


def leaves(trace: object) -> list[object]:
    match trace:
        case t.Seq(items):
            return [leaf for item in items for leaf in leaves(item)]
        case t.Stmt(_, body):
            return leaves(body)
        case t.Loop(_, head, _, _, _, body, _):
            return [*leaves(head), *leaves(body)]
        case t.Branch(_, _, then, other):
            return [*leaves(then), *leaves(other)]
    return [trace]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=repr)
def test_spans_count_characters_from_1(newline: str) -> None:
    code = CODE.replace("\n", newline)
    at, calls = places(code)
    assert at.span(calls["call"]) == Span(3, 19, 3, 38)
    assert at.span(calls["inner"]) == Span(7, 13, 7, 21)
    assert at.span(calls["outer"]) == Span(6, 16, 8, 10)
    assert text_of(Source.from_text("a.py", code), at.span(calls["call"])) == 'call(x, "🙂", key=y)'


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=repr)
def test_bytes_are_those_of_the_file(newline: str) -> None:
    code = CODE.replace("\n", newline)
    at, calls = places(code)
    for name, number in calls.items():
        start, end = at.bytes_of(number)
        assert code.encode()[start:end].decode().startswith(f"{name}(")
        assert code.encode()[start:end].endswith(b")")


def test_text_of_a_node_and_of_its_statement() -> None:
    at, calls = places(CODE)
    assert at.text(calls["call"]) == 'call(x, "🙂", key=y)'
    assert at.text(at.statement(calls["call"])) == 'y = "漢字"; z = call(x, "🙂", key=y)'
    assert at.text(calls["outer"]) == "outer(\n    inner(x),\n)", "without the indentation of its block"
    assert at.statement(at.statement(calls["call"])) == at.statement(calls["call"])


def test_statements_that_share_a_line() -> None:
    at, calls = places(CODE)
    assert not at.alone(calls["call"])
    assert at.alone(calls["inner"])


def test_loops_between_two_nodes() -> None:
    at, calls = places(CODE)
    assert at.loops(calls["inner"], calls["call"])
    assert at.loops(calls["use"], calls["inner"])
    assert not at.loops(calls["inner"], calls["outer"])
    assert not at.loops(calls["call"], calls["alone"])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=repr)
def test_lines_of_a_statement(newline: str) -> None:
    code = CODE.replace("\n", newline)
    at, calls = places(code)
    start, end, indent = at.line_span(calls["inner"])
    assert code.encode()[start:end].decode() == newline.join(
        ["        return outer(", "            inner(x),", "        )", ""]
    )
    assert indent == " " * 8
    assert at.newline() == newline


def test_a_statement_on_the_last_line_without_a_newline() -> None:
    at, calls = places("def f(x):\n    g(x)")
    assert at.line_span(calls["g"]) == (10, 18, "    ")
    assert at.span(calls["g"]) == Span(2, 5, 2, 9)


WORDS = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="\\'\"{}"), max_size=6)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    st.lists(st.tuples(WORDS, st.integers(0, 3), st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_every_call_is_where_it_says(lines: list[tuple[str, int, bool]], newline: str) -> None:
    body = []
    for number, (word, blanks, wrapped) in enumerate(lines):
        inside = f"\n        '{word}',\n    " if wrapped else f"'{word}'"
        body += [f"    # {word}"] * blanks + [f"    x = '{word}' + f{number}({inside})"]
    code = "def f():\n" + "\n".join(body) + "\n"
    source = Source.from_text("a.py", code.replace("\n", newline))
    at, calls = places(source.code)
    for number, (word, _, wrapped) in enumerate(lines):
        inside = f"\n        '{word}',\n    " if wrapped else f"'{word}'"
        assert text_of(source, at.span(calls[f"f{number}"])) == f"f{number}({inside})".replace("\n", newline)
