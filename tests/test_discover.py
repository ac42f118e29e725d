"""Which files a walk finds: .gitignore, excludes, links, pipes, nested configurations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from amp_doctor.config import Configuration, Said, nearest
from amp_doctor.lint.discover import discover
from amp_doctor.lint.result import InputError
from amp_doctor.lint.run import roots_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nearest.cache_clear()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plant(tree: Path, *files: str, **texts: str) -> None:
    for name in files:
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")


def found(*paths: str, said: Said | None = None) -> list[str]:
    targets, errors = discover(paths or (".",), Configuration(said))
    assert errors == []
    return [target.path for target in targets]


def test_python_files_of_all_kinds_sorted(tree: Path) -> None:
    plant(tree, "b.py", "a.pyi", "n.ipynb", "sub/c.py", "notes.txt", "script", ".hidden/d.py")
    assert found() == [".hidden/d.py", "a.pyi", "b.py", "n.ipynb", "sub/c.py"]


def test_a_file_that_is_named_counts_whatever_its_name_and_only_once(tree: Path) -> None:
    plant(tree, "script", "build/a.py")
    assert found("script", "./script", "build/a.py", str(tree / "script")) == ["build/a.py", "script"]


def test_usual_places_are_skipped_unless_named(tree: Path) -> None:
    plant(tree, "a.py", ".venv/b.py", "node_modules/c.py", "build/d.py", "sub/__pycache__/e.py", "sub/dist/f.py")
    assert found() == ["a.py"]
    assert found("build") == ["build/d.py"]
    assert found(said=Said(exclude=("sub",))) == [".venv/b.py", "a.py", "build/d.py", "node_modules/c.py"]


def test_excludes_use_the_syntax_of_gitignore(tree: Path) -> None:
    plant(tree, "a.py", "gen/b.py", "gen/keep.py", "sub/gen/c.py", "sub/x_pb2.py", "sub/old/d.py")
    assert found(said=Said(extend_exclude=("/gen/*", "!/gen/keep.py", "*_pb2.py", "sub/old"))) == [
        "a.py",
        "gen/keep.py",
        "sub/gen/c.py",
    ]


def test_excludes_of_a_file_are_relative_to_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tree, "a/b.py", "sub/a/c.py")
    (tree / "pyproject.toml").write_text('[tool.amp-doctor]\nextend-exclude = ["/a"]\n')
    monkeypatch.chdir(tree / "sub")
    assert found("..") == ["../sub/a/c.py"]


def test_gitignore_is_honoured_nested_and_with_exceptions(tree: Path) -> None:
    plant(tree, "a.py", "out/b.py", "sub/c.py", "sub/tmp_d.py", "sub/tmp_keep.py", "sub/deep/tmp_e.py")
    (tree / ".gitignore").write_text("# comment\nout/\n\ntmp_*.py\n")
    (tree / "sub" / ".gitignore").write_text("!tmp_keep.py\n")
    assert found() == ["a.py", "sub/c.py", "sub/tmp_keep.py"]


def test_gitignore_above_counts_inside_a_repository(tree: Path) -> None:
    plant(tree, "repo/sub/a.py", "repo/sub/tmp.py", "repo/out/b.py", "repo/out/tmp.py")
    (tree / "repo" / ".gitignore").write_text("out/\ntmp.py\n")
    assert found("repo/sub") == ["repo/sub/a.py", "repo/sub/tmp.py"]
    (tree / "repo" / ".git").mkdir()
    assert found("repo/sub") == ["repo/sub/a.py"]
    # Who names an ignored directory wants it linted.
    assert found("repo/out") == ["repo/out/b.py", "repo/out/tmp.py"]


def test_force_exclude_holds_for_what_is_named(tree: Path) -> None:
    plant(tree, "a.py", "gen/b.py", "build/c.py", "build/deep/d.py")
    said = Said(extend_exclude=("gen",), force_exclude=True)
    assert found("a.py", "gen/b.py", "build/c.py", "build/deep", said=said) == ["a.py"]
    assert found("gen/b.py", said=Said(extend_exclude=("gen",))) == ["gen/b.py"]


def test_links_to_directories_are_not_followed_so_loops_end(tree: Path) -> None:
    plant(tree, "sub/a.py")
    (tree / "sub" / "loop").symlink_to("..")
    (tree / "other").symlink_to("sub")
    assert found() == ["sub/a.py"]
    assert found("other") == ["other/a.py"]


def test_a_link_to_a_file_is_linted_unless_the_file_is(tree: Path) -> None:
    plant(tree, "in/a.py", "out/b.py")
    (tree / "in" / "same.py").symlink_to("a.py")
    (tree / "in" / "far.py").symlink_to("../out/b.py")
    assert found("in") == ["in/a.py", "in/far.py"]


def test_what_cannot_be_looked_into_is_told_and_the_rest_found(tree: Path) -> None:
    plant(tree, "a.py", "sub/b.py")
    (tree / "dead.py").symlink_to("nowhere.py")
    (tree / ".#a.py").symlink_to("user@host.1234")
    targets, errors = discover([".", "gone.py"], Configuration())
    assert [target.path for target in targets] == ["a.py", "sub/b.py"]
    assert errors == [
        InputError("dead.py", "a symbolic link that leads nowhere"),
        InputError("gone.py", "no such file or directory"),
    ]


def test_a_directory_without_permission_is_told(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tree, "a.py", "sub/b.py")
    scandir = os.scandir

    def refused(directory: str) -> object:
        if directory.endswith("sub"):
            raise PermissionError(13, "Permission denied")  # root, who may run the tests, is refused nothing
        return scandir(directory)

    monkeypatch.setattr("amp_doctor.lint.walk.os.scandir", refused)
    targets, errors = discover(["."], Configuration())
    assert [target.path for target in targets] == ["a.py"]
    assert errors == [InputError("sub", "no permission to read it")]


def test_pipes_are_left_alone_in_a_walk(tree: Path) -> None:
    plant(tree, "a.py")
    os.mkfifo(tree / "pipe.py")
    assert found() == ["a.py"]


def test_each_file_has_the_settings_of_its_nearest_configuration(tree: Path) -> None:
    plant(tree, "a.py", "sub/b.py", "sub/deep/c.py", "sub/gen/d.py")
    (tree / "pyproject.toml").write_text('[tool.amp-doctor]\ntorch-version = "2.1"\n')
    (tree / "sub" / "pyproject.toml").write_text('[tool.amp-doctor]\ntorch-version = "2.6"\nextend-exclude = ["gen"]\n')
    walked = {target.path: target.settings.torch_version for target in discover(["."], Configuration())[0]}
    assert walked == {"a.py": (2, 1), "sub/b.py": (2, 6), "sub/deep/c.py": (2, 6)}
    named = discover(["a.py", "sub/deep/c.py"], Configuration())[0]
    assert [target.settings.torch_version for target in named] == [(2, 1), (2, 6)]


def test_first_party_imports_are_looked_for_from_the_top_of_the_package(tree: Path) -> None:
    plant(tree, "pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/a.py", "scripts/b.py")
    assert roots_of(["pkg/sub/a.py", "scripts"]) == (str(tree), str(tree / "scripts"))
