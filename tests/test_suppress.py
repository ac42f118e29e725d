"""Comments that hide findings: what they cover, what is unused, and what the fix leaves."""

from __future__ import annotations

import pytest

from amp_doctor.finding import Finding, Severity, Span
from amp_doctor.lint.source import Source, edited
from amp_doctor.lint.suppress import pragmas, suppress

NAMES = {"AMP201": "clip-before-unscale", "AMP202": "unscaled-backward", "AMP301": "backward-in-autocast"}


def finding(code: str, line: int, end_line: int | None = None) -> Finding:
    return Finding(code, NAMES[code], Severity.ERROR, "planted", "a.py", Span(line, 1, end_line or line, 2))


def hidden(code: str, *findings: Finding) -> list[bool]:
    """Whether each of the findings is suppressed; AMP002 must not come up."""
    out = suppress(Source.from_text("a.py", code), findings)
    assert [f.code for f in out] == [f.code for f in findings], [f.message for f in out]
    return [f.suppressed for f in out]


def unused(code: str, *findings: Finding, enabled: str = "ALL") -> list[tuple[int, int, str]]:
    """Place and words of every AMP002 that is shown."""
    on = None if enabled == "ALL" else enabled.split().__contains__
    out = suppress(Source.from_text("a.py", code), findings, on)
    return [(f.span.line, f.span.column, f.message) for f in out if f.code == "AMP002" and not f.suppressed]


def fixed(code: str, *findings: Finding) -> str:
    """The code after the fixes of all AMP002."""
    source = Source.from_text("a.py", code)
    out = [f for f in suppress(source, findings) if f.code == "AMP002"]
    assert all(f.fix is not None for f in out)
    return edited(source, [edit for f in out if f.fix for edit in f.fix.edits]).code


CLIP = finding("AMP201", 1)


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa",
        "#noqa",
        "# NOQA",
        "# noqa: AMP201",
        "#noqa:AMP201",
        "# noqa : AMP201",
        "# noqa: amp201",
        "# noqa: E501,AMP201",
        "# noqa: E501 AMP201 because",
        "# noqa: AMP2",
        "# noqa: clip-before-unscale",
        "# noqa: this line is fine",
        "# type: ignore # noqa: AMP201",
        "# amp-doctor: ignore",
        "# amp-doctor: ignore[AMP201]",
        "# amp-doctor: ignore[clip-before-unscale] they are small",
        "# amp-doctor: ignore[AMP2]",
        "# amp-doctor: ignore[ALL]",
        "# amp-doctor:ignore[AMP201]",
        "# Amp-Doctor: Ignore[amp201]",
        "# why  # amp-doctor: ignore[AMP201]",
        "# amp-doctor: ignore-file",
        "# amp-doctor: ignore-file[AMP201] generated",
    ],
)
def test_comments_that_hide(comment: str) -> None:
    assert hidden(f"clip()  {comment}\n", CLIP) == [True]


@pytest.mark.parametrize(
    "code",
    [
        "clip()  # noqa: E501\n",
        "clip()  # nothing\n",
        's = "# noqa: AMP201"\n',
        's = """\n# amp-doctor: ignore-file\n"""\n',
        "# noqa\nclip()\n",
    ],
)
def test_comments_that_do_not(code: str) -> None:
    assert hidden(code, finding("AMP201", 2 if code.startswith("# noqa") else 1)) == [False]


def test_any_line_of_the_statement_will_do() -> None:
    code = "clip(\n    a,  # noqa: AMP201\n    b,\n)\nclip()\n"
    assert hidden(code, finding("AMP201", 1, 4), finding("AMP201", 5)) == [True, False]
    code = "x = (\n    clip(a),\n    b,\n)  # noqa: AMP201\n"
    assert hidden(code, finding("AMP201", 2)) == [True]
    code = "with a:\n    b()\n    c()  # noqa: AMP201\n"
    assert hidden(code, finding("AMP201", 1, 3)) == [True]
    code = "with a:\n    b()  # noqa\n    c()\n"
    assert hidden(code, finding("AMP201", 1, 3)) == [False]


def test_a_line_of_its_own_covers_the_next_statement() -> None:
    code = "# amp-doctor: ignore[AMP201] why\n# more\n\nclip(\n    a,\n)\nclip()\n"
    assert hidden(code, finding("AMP201", 4), finding("AMP201", 5), finding("AMP201", 7)) == [True, True, False]


def test_above_decorators_it_covers_the_definition() -> None:
    code = "# amp-doctor: ignore[AMP201]\n@a\n@b(\n    1\n)\ndef f():\n    clip()\n"
    assert hidden(code, finding("AMP201", 3), finding("AMP201", 6), finding("AMP201", 7)) == [True, True, False]


def test_only_the_rules_named_are_hidden() -> None:
    code = "clip()  # amp-doctor: ignore[AMP201]\n"
    assert hidden(code, CLIP, finding("AMP202", 1)) == [True, False]


def test_what_hides_nothing_is_told_at_its_place() -> None:
    assert unused("x = 1  # noqa: AMP201\n") == [(1, 8, "suppresses nothing: AMP201")]
    assert unused("x = 1  # why  # amp-doctor: ignore[AMP201]\n") == [(1, 15, "suppresses nothing: AMP201")]
    assert unused("clip()  # noqa: AMP201, AMP202\n", CLIP) == [(1, 9, "suppresses nothing: AMP202")]
    assert unused("x = 1  # amp-doctor: ignore\n") == [(1, 8, "this comment suppresses nothing")]
    assert unused("# amp-doctor: ignore-file[AMP2]\nx = 1\n") == [(1, 1, "suppresses nothing: AMP2")]


def test_what_is_not_understood_is_told() -> None:
    assert unused("x = 1  # noqa: AMP999\n") == [(1, 8, "no rule is called AMP999")]
    assert unused("x = 1  # amp-doctor: ignore[clip-befor]\n") == [(1, 8, "no rule is called clip-befor")]
    assert unused("x = 1  # amp-doctor: ignore[]\n") == [(1, 8, "names no rule between its brackets")]
    assert unused("x = 1  # amp-doctor: ignore[AMP201\n") == [(1, 8, "has no closing bracket")]
    assert unused("x = 1  # amp-doctor: disable\n") == [
        (1, 8, "expected ignore[...] or ignore-file[...], not 'disable'")
    ]


@pytest.mark.parametrize(
    "code",
    [
        "x = 1  # noqa\n",
        "x = 1  # noqa: E501, F401\n",
        "x = 1  # noqa: AMP002\n",
        "x = 1  # noqa: AMP201, AMP002\n",
        "x = 1  # amp-doctor: ignore[AMP201] # noqa\n",
        "# amp-doctor: ignore-file[AMP002]\nx = 1  # noqa: AMP201\n",
        "x = 1  # amp-doctor: ignore[AMP601, AMP6, dead-loss-scale]\n",
    ],
)
def test_what_is_never_told(code: str) -> None:
    assert unused(code) == []


def test_rules_that_are_off_are_not_judged() -> None:
    assert unused("x = 1  # noqa: AMP201\n", enabled="AMP002 AMP202") == []
    assert unused("x = 1  # noqa: AMP201\n", enabled="AMP201") == []
    # A prefix is judged only when all that it stands for is on.
    assert unused("x = 1  # noqa: AMP2\n", enabled="AMP002 AMP201") == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # noqa: AMP201\n", "x = 1\n"),
        ("x = 1  # noqa: AMP201 because\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n"),
        ("x = 1  # noqa: E501, AMP201\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # noqa: AMP201,E501\n", "x = 1  # noqa: E501\n"),
        ("é = 1  # noqa: AMP201 AMP202 E501 über\n", "é = 1  # noqa: E501 über\n"),
        ("x = 1  # why  # noqa: AMP201\n", "x = 1  # why\n"),
        ("x = 1  # noqa: AMP201  # why\n", "x = 1  # why\n"),
        ("x = 1  # type: ignore  # noqa: AMP201  # pragma: no cover\n", "x = 1  # type: ignore  # pragma: no cover\n"),
        ("x = 1  # amp-doctor: ignore[AMP202, AMP203] why\n", "x = 1\n"),
        ("if a:\n    # amp-doctor: ignore[AMP201]\n    x = 1\n", "if a:\n    x = 1\n"),
        ("x = 1\n# amp-doctor: ignore-file[AMP201]", "x = 1\n"),
        ("f(\n    a,  # noqa: AMP201\n)\n", "f(\n    a,\n)\n"),
    ],
)
def test_the_fix_takes_away_what_is_unused_and_nothing_else(before: str, after: str) -> None:
    assert fixed(before) == after


def test_the_fix_keeps_what_is_used() -> None:
    assert fixed("clip()  # amp-doctor: ignore[AMP202, AMP201, AMP203] why\n", CLIP) == (
        "clip()  # amp-doctor: ignore[AMP201] why\n"
    )


def test_files_without_such_comments_are_not_even_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_doctor.lint.suppress.layout", None)
    assert pragmas(Source.from_text("a.py", "x = 1  # noqa: F401\n# amp doctor\n")) == ()
