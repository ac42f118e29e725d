"""Which files of a project a script imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_doctor.cli.imports import MOST, first_party

if TYPE_CHECKING:
    from pathlib import Path


def lay(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", "__init__")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)


def found(root: Path, script: str = "train.py") -> list[str]:
    paths = first_party(str(root / script), [str(root)])
    return [path.removeprefix(f"{root}/") for path in paths]


def test_imports_are_followed_where_python_would_look(tmp_path: Path) -> None:
    lay(
        tmp_path,
        train="import os, torch, model\nfrom pkg import data\nfrom pkg.deep.engine import step as go\n",
        model="def late():\n    import lazily\n",
        lazily="import train, model\n",
        pkg__DOT="",
        pkg__data="from . import sibling\nfrom .deep import engine\nfrom .. import beyond\n",
        pkg__sibling="",
        pkg__deep__engine="from ..sibling import x\n",
        unused="",
    )
    assert found(tmp_path) == [
        "model.py",
        "pkg/__init__.py",
        "pkg/data.py",
        "pkg/deep/engine.py",
        "lazily.py",
        "pkg/sibling.py",
    ]


def test_a_script_in_a_package_finds_what_is_beside_it_and_at_the_top(tmp_path: Path) -> None:
    lay(tmp_path, pkg__DOT="", pkg__train="import other\nimport pkg.model\n", pkg__other="", pkg__model="")
    assert found(tmp_path, "pkg/train.py") == ["pkg/other.py", "pkg/__init__.py", "pkg/model.py"]


def test_what_does_not_parse_ends_the_trail(tmp_path: Path) -> None:
    lay(tmp_path, train="import a\n", a="import b\nif:\n", b="")
    assert found(tmp_path) == ["a.py"]
    assert found(tmp_path, "gone.py") == []
    (tmp_path / "train.py").write_bytes(b"\xff\x00import a\n")
    assert found(tmp_path) == []


def test_there_is_an_end(tmp_path: Path) -> None:
    lay(tmp_path, train="import m0\n", **{f"m{n}": f"import m{n + 1}\n" for n in range(MOST + 50)})
    assert len(found(tmp_path)) == MOST
