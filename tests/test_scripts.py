"""Whole training scripts in the shapes people write, each with its findings at the ends of its lines.

A script without such a comment is correct and tempting: nothing at all may be reported in it.
"""

from __future__ import annotations

import ast

import pytest

from amp_doctor.lint.files import display
from amp_doctor.lint.project import Project
from amp_doctor.lint.source import read_source
from tests.conftest import ROOT
from tests.inline import expectations, lint_file, mismatches, mismatches_in

SCRIPTS = ROOT / "fixtures" / "scripts"
PROJECT = SCRIPTS / "project"
FILES = sorted(path.name for path in SCRIPTS.iterdir() if path.suffix in (".py", ".pyi", ".ipynb"))
MODULES = sorted(path.relative_to(PROJECT).as_posix() for path in PROJECT.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_findings_are_those_of_the_comments(file: str) -> None:
    assert mismatches_in(SCRIPTS / file) == []


@pytest.mark.parametrize("file", [name for name in FILES if name.endswith(".py")])
def test_the_head_of_a_script_says_whether_it_is_silent(file: str) -> None:
    code = (SCRIPTS / file).read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(code)) or ""
    if docstring.endswith(": silent."):
        assert expectations(code) == {}


def test_there_are_scripts_of_both_kinds() -> None:
    wrong = [name for name in FILES if expectations(read_source(SCRIPTS / name).code)]
    assert len(wrong) >= 12
    assert len(FILES) - len(wrong) >= 12


def test_a_notebook_is_reported_by_cell_and_line() -> None:
    file = SCRIPTS / "notebook.ipynb"
    (finding,) = lint_file(file)
    assert read_source(file).place(finding.span.line) == (6, 7)


# --- several files as one program ----------------------------------------------------------------


@pytest.mark.parametrize("order", ["as listed", "backwards"])
def test_findings_of_a_project_through_its_imports(order: str) -> None:
    """What a module is imported for may be reported in the importer's run, at the module's own line."""
    project = Project((PROJECT,))
    files = MODULES if order == "as listed" else MODULES[::-1]
    found = {(f.path, f.code, f.span): f for module in files for f in lint_file(PROJECT / module, project)}
    wrong = []
    for module in MODULES:
        here = [finding for (path, _, _), finding in found.items() if path == display(str(PROJECT / module))]
        wrong += mismatches((PROJECT / module).read_text("utf-8"), here, module)
    assert wrong == []


def test_an_import_is_read_only_inside_the_linted_tree() -> None:
    alone = lint_file(PROJECT / "resume.py", Project((PROJECT / "models",)))
    assert [finding.code for finding in alone] == []
