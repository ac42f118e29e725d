"""Bytes to text and back: encodings, BOM, line endings, notebooks with magics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from amp_doctor.errors import ReadError
from amp_doctor.finding import Edit, Span
from amp_doctor.lint.logical import layout
from amp_doctor.lint.notebook import mask
from amp_doctor.lint.source import Source, edited, parse_source, read_source, text_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"x = 1\n", "x = 1\n"),
        (b"", ""),
        (b"\xef\xbb\xbfx = 1\r\n", "x = 1\r\n"),
        ("é = 1\n".encode(), "é = 1\n"),
        ("# -*- coding: latin-1 -*-\ns = 'é'\n".encode("latin-1"), "# -*- coding: latin-1 -*-\ns = 'é'\n"),
        ("#!/bin/python\n# vim: set fileencoding=cp1252 :\ns = '€'\n".encode("cp1252"), None),
        (b"a = 1\rb = 2\r", "a = 1\rb = 2\r"),
        # Only the first two lines may declare an encoding, and only when nothing else stands above.
        ("x = 1\n# coding: latin-1\ns = 'é'\n".encode(), "x = 1\n# coding: latin-1\ns = 'é'\n"),
    ],
)
def test_text_is_decoded_as_python_does_it(raw: bytes, code: str | None) -> None:
    found = parse_source(raw, "a.py").code
    assert found == (code if code is not None else raw.decode("cp1252"))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"x = 1\ns = '\xe9'\n", "is not UTF-8: line 2 has the byte 0xe9"),
        ("x = 1\n".encode("utf-16"), "is UTF-16; Python reads UTF-8, so save it as that"),
        (b"# coding: klingon\n", "declares the encoding 'klingon', which Python does not know"),
        (b"# coding: rot13\n", "declares the encoding 'rot13', which Python does not know"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "starts with a UTF-8 byte order mark but declares the encoding 'latin-1'"),
    ],
)
def test_what_cannot_be_decoded_is_told_in_one_line(raw: bytes, reason: str) -> None:
    with pytest.raises(ReadError) as caught:
        parse_source(raw, "a.py")
    assert caught.value.reason == reason
    assert caught.value.path == "a.py"


def test_missing_files_and_dead_links_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("nowhere.py")
    with pytest.raises(ReadError, match="a symbolic link that leads nowhere"):
        read_source(tmp_path / "link.py")
    with pytest.raises(ReadError, match="it vanished meanwhile"):
        read_source(tmp_path / "gone.py")


def test_paths_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    assert read_source(tmp_path / "sub" / "a.py").path == "sub/a.py"
    monkeypatch.chdir(tmp_path / "sub")
    assert read_source(tmp_path / "sub" / "a.py").path == "a.py"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfx = 1\r\ny = 2\r\n", b"\xef\xbb\xbfx = 10\r\ny = 2\r\n"),
        ("x = 1  # é\n".encode(), "x = 10  # é\n".encode()),
        ("# coding: latin-1\nx = 1  # é\n".encode("latin-1"), "# coding: latin-1\nx = 10  # é\n".encode("latin-1")),
    ],
)
def test_edits_keep_the_form_of_the_file(before: bytes, after: bytes) -> None:
    source = parse_source(before, "a.py")
    at = source.code.encode().index(b"1\r" if b"\r" in before else b" 1") + (b"\r" not in before)
    changed = edited(source, [Edit(at, at + 1, "10")])
    assert changed.raw == after
    assert parse_source(after, "a.py").code == changed.code


def test_an_edit_that_the_encoding_cannot_hold_is_refused() -> None:
    source = parse_source(b"# coding: latin-1\nx = 1\n", "a.py")
    with pytest.raises(ValueError, match="latin-1"):
        edited(source, [Edit(0, 0, "# 数\n")])


def test_text_of_a_span_counts_characters() -> None:
    source = Source.from_text("a.py", "é = (1,\r\n  2)\r\n")
    assert text_of(source, Span(1, 5, 2, 5)) == "(1,\r\n  2)"


def test_layout_is_not_fooled_by_strings_and_joins() -> None:
    code = 'x = "#" + \'#\'  # one\nf(a,\n  b)  # two\n"""\n# no\n"""\n  # own\ny = 1 + \\\n  2  # three\n'
    seen = layout(code)
    assert [(comment.line, comment.own) for comment in seen.comments] == [(1, False), (3, False), (7, True), (9, False)]
    assert seen.statements == ((1, 1), (2, 3), (4, 6), (8, 9))
    assert seen.depth == 1


def notebook(*cells: Any, language: str = "python", indent: int | None = 1) -> bytes:
    document = {
        "cells": [
            {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": cell}
            if not isinstance(cell, dict)
            else cell
            for cell in cells
        ],
        "metadata": {"language_info": {"name": language}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return (json.dumps(document, indent=indent, ensure_ascii=False) + "\n").encode()


MARKDOWN = {"cell_type": "markdown", "metadata": {}, "source": ["# autocast\n", "text"]}


def test_notebook_cells_are_joined_and_found_again() -> None:
    source = parse_source(notebook("a = 1\nb = 2", MARKDOWN, [], ["c = 3\n", "d = 4\n"]), "n.ipynb")
    assert source.code == "a = 1\nb = 2\nc = 3\nd = 4\n"
    assert [source.place(line) for line in (1, 2, 3, 4)] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert Source.from_text("a.py", "x\n").place(1) is None


def test_notebook_in_another_language_has_no_python() -> None:
    source = parse_source(notebook("library(torch)", language="R"), "n.ipynb")
    assert (source.code, source.cells) == ("", ())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "invalid JSON at line 1"),
        (b'{"cells": [\n', "invalid JSON at line 2"),
        (b"[]", "its JSON has no list of cells"),
        (b'{"cells": 3}', "its JSON has no list of cells"),
        (b'{"worksheets": []}', "is a notebook of format 3"),
        (b'"\xff"', "is not UTF-8: byte 0xff at offset 1"),
        (b"[" * 100_000, "is not a notebook"),
    ],
)
def test_broken_notebooks_are_told_in_one_line(raw: bytes, reason: str) -> None:
    with pytest.raises(ReadError, match=reason):
        parse_source(raw, "n.ipynb")


@pytest.mark.parametrize(
    ("code", "masked"),
    [
        ("%matplotlib inline\nx = 1", "#" + " " * 17 + "\nx = 1"),
        ("!pip install torch\n", "#" + " " * 17 + "\n"),
        ("if a:\n    !ls\n", "if a:\n    0# \n"),
        ("files = !ls\n", "files = 0# \n"),
        ("model?\nx = 1\n", "model?\nx = 1\n".replace("model?", "#     ")),
        ("%time loss.backward()\n", "0    ;loss.backward()\n"),
        ("%%time\nx = 1\n", "#     \nx = 1\n"),
        ("%%bash\necho hi\n", "#     \n#      \n"),
        ("!pip install \\\n  torch\nx = 1\n", "#             \n#      \nx = 1\n"),
        # Not magics: operators after a join, inside brackets, text in strings.
        ("x = (a\n% b)\n", "x = (a\n% b)\n"),
        ("x = a \\\n% b\n", "x = a \\\n% b\n"),
        ('s = """\n%d\n!x\n"""\n', 's = """\n%d\n!x\n"""\n'),
        ("x %= 3\ny = a != b\n", "x %= 3\ny = a != b\n"),
        ('!echo "it\'s"\nx = 1\n', "#" + " " * 11 + "\nx = 1\n"),
    ],
)
def test_magics_are_blanked_in_place(code: str, masked: str) -> None:
    assert mask(code) == masked
    assert [len(line) for line in masked.split("\n")] == [len(line) for line in code.split("\n")]
    compile(masked, "cell", "exec")


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_notebook_edits_leave_all_else_byte_for_byte(indent: int | None) -> None:
    raw = notebook(["%time x = 'é'\n", "y = 1\n", "z = 2"], MARKDOWN, "w = 3", indent=indent)
    source = parse_source(raw, "n.ipynb")
    at = source.code.encode().index(b"y = 1")
    last = source.code.encode().index(b"w = 3")
    changed = edited(source, [Edit(at, at + 5, "y = 10\nyy = 11"), Edit(last + 5, last + 5, " + v")])
    assert changed.raw == notebook(
        ["%time x = 'é'\n", "y = 10\n", "yy = 11\n", "z = 2"], MARKDOWN, "w = 3 + v", indent=indent
    )
    assert changed.code == "0    ;x = 'é'\ny = 10\nyy = 11\nz = 2\nw = 3 + v\n"


def test_lines_put_between_two_cells_go_where_they_belong() -> None:
    source = parse_source(notebook("for x in y:\n    f(x)", "g()"), "n.ipynb")
    at = source.code.index("g()")
    assert edited(source, [Edit(at, at, "h()\n")]).raw == notebook("for x in y:\n    f(x)", "h()\ng()")
    inside = edited(source, [Edit(at, at, "    h()\n")])
    assert inside.raw == notebook("for x in y:\n    f(x)\n    h()", "g()")


def test_an_edit_across_cells_is_refused() -> None:
    source = parse_source(notebook("a = 1", "b = 2"), "n.ipynb")
    with pytest.raises(ValueError, match="across notebook cells"):
        edited(source, [Edit(2, 9, "x")])


def test_escapes_of_a_notebook_stay_escapes() -> None:
    raw = notebook(["s = 'é'\n", "x = 1"]).replace("é".encode(), b"\\u00e9")
    source = parse_source(raw, "n.ipynb")
    at = source.code.encode().index(b"x = 1")
    changed = edited(source, [Edit(at, at + 5, "x = 'ü'")])
    assert changed.raw == raw.replace(b"x = 1", b"x = '\\u00fc'")
