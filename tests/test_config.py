"""Settings from files and from the command line, and what is said about broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amp_doctor import catalog
from amp_doctor.config import Configuration, Said, nearest, read_config
from amp_doctor.errors import ConfigError, SelectorError
from amp_doctor.selection import Choice, checked_selector, chosen, covers

if TYPE_CHECKING:
    from pathlib import Path

CODES = {
    "AMP001": "syntax-error",
    "AMP002": "unused-suppression",
    "AMP201": "clip-before-unscale",
    "AMP202": "unscaled-backward",
    "AMP301": "backward-in-autocast",
    "AMP901": "accumulated-loss-not-divided",
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    nearest.cache_clear()


@pytest.mark.parametrize(
    ("choices", "on"),
    [
        ([], "001 002 201 202 301"),
        ([Choice(select=("AMP2",))], "001 201 202"),
        ([Choice(select=("AMP2",), ignore=("AMP201",))], "001 202"),
        ([Choice(select=("clip-before-unscale",), ignore=("AMP2",))], "001 201"),
        ([Choice(select=("AMP2",), ignore=("AMP2",))], "001"),
        ([Choice(select=("ALL",))], "001 002 201 202 301 901"),
        ([Choice(select=("ALL",), ignore=("AMP9",))], "001 002 201 202 301"),
        ([Choice(extend_select=("AMP9",))], "001 002 201 202 301 901"),
        ([Choice(ignore=("ALL",))], ""),
        ([Choice(ignore=("syntax-error",))], "002 201 202 301"),
        ([Choice(extend_ignore=("AMP3",))], "001 002 201 202"),
        # The later place, the command line, wins however specific the earlier one is.
        ([Choice(ignore=("AMP201",)), Choice(select=("AMP2",))], "001 201 202"),
        ([Choice(select=("AMP201",)), Choice(ignore=("AMP2",))], "001"),
        ([Choice(select=("AMP2",)), Choice(extend_select=("AMP3",))], "001 201 202 301"),
    ],
)
def test_the_most_specific_selector_wins_and_the_command_line_beats_the_file(choices: list[Choice], on: str) -> None:
    assert chosen(CODES, choices) == {f"AMP{digits}" for digits in on.split()}


@pytest.mark.parametrize(
    ("text", "selector"),
    [("amp201", "AMP201"), ("AMP2", "AMP2"), ("all", "ALL"), ("clip-before-unscale", "clip-before-unscale")],
)
def test_selectors_are_normalised(text: str, selector: str) -> None:
    assert checked_selector(text, CODES) == selector


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("AMP209", "did you mean AMP20"),
        ("clip-befor-unscale", "did you mean clip-before-unscale?"),
        ("AMP4", "no rule is called 'AMP4'"),
        ("E501", "`amp-doctor rules` lists them"),
    ],
)
def test_unknown_selectors_are_refused_with_a_suggestion(text: str, hint: str) -> None:
    with pytest.raises(SelectorError) as caught:
        checked_selector(text, CODES)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("train.py", True),
        ("src/*", True),
        ("src/", True),
        ("./src/deep/train.py", True),
        ("**/train.py", True),
        ("src/**/train.py", True),
        ("**/src/deep/*.py", True),
        ("deep/*", False),
        ("test_*.py", False),
        ("!tests/*", True),
        ("!src/*", False),
    ],
)
def test_globs_of_per_file_ignores(pattern: str, covered: bool) -> None:
    assert covers(pattern, "/project", "/project/src/deep/train.py") is covered


def test_the_nearest_table_upward_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.amp-doctor]\nfail-on = "note"\n')
    # Another project's file without our table, even a broken one, is passed over.
    (tmp_path / "a" / "b" / "pyproject.toml").write_text("[tool.black\n")
    assert nearest(str(deep)) == str(tmp_path / "pyproject.toml")
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.amp-doctor]\n")
    nearest.cache_clear()
    assert nearest(str(deep)) == str(tmp_path / "a" / "pyproject.toml")


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        "[tool.amp-doctor]\n"
        'select = ["amp2"]\nignore = ["AMP201"]\nextend-select = ["AMP901"]\nextend-ignore = ["AMP202"]\n'
        'exclude = ["old"]\nextend-exclude = ["gen/*.py"]\nforce-exclude = true\n'
        'fail-on = "error"\ntorch-version = "2.4"\noutput-format = "json"\njobs = 3\ncache-dir = ".cache/amp"\n'
        '[tool.amp-doctor.per-file-ignores]\n"tests/*" = ["AMP2"]\n'
    )
    settings = Configuration().settings_for(str(tmp_path))
    assert settings.file == str(file)
    assert settings.root == str(tmp_path)
    assert settings.get("select") == ("AMP2",)
    assert settings.torch_version == (2, 4)
    assert settings.force_exclude
    assert not settings.default_excludes
    assert settings.excludes == ((str(tmp_path), ("old", "gen/*.py")),)
    assert settings.cache_dir == str(tmp_path / ".cache/amp")
    assert (settings.get("fail_on"), settings.get("output_format"), settings.get("jobs")) == ("error", "json", 3)
    enabled = settings.enabled_for(str(tmp_path / "train.py"))
    assert {"AMP203", "AMP901"} <= enabled
    assert not {"AMP201", "AMP202", "AMP301", "AMP002"} & enabled
    assert "AMP203" not in settings.enabled_for(str(tmp_path / "tests" / "train.py"))


def test_the_command_line_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.amp-doctor]\nfail-on = "note"\nexclude = ["a"]\nextend-exclude = ["b"]\n'
    )
    monkeypatch.chdir(tmp_path)
    said = Said(fail_on="error", exclude=("c",))
    settings = Configuration(said).settings_for(str(tmp_path))
    assert settings.get("fail_on") == "error"
    assert settings.excludes == ((str(tmp_path), ("b",)), (str(tmp_path), ("c",)))
    isolated = Configuration(isolated=True).settings_for(str(tmp_path))
    assert (isolated.file, isolated.get("fail_on"), isolated.default_excludes) == (None, None, True)


def test_a_file_of_its_own_needs_no_table(tmp_path: Path) -> None:
    file = tmp_path / "amp.toml"
    file.write_text('fail-on = "note"\n')
    assert read_config(str(file)) == {"fail_on": "note"}
    file.write_text('[tool.amp-doctor]\nfail-on = "error"\n')
    assert read_config(str(file)) == {"fail_on": "error"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('selct = ["AMP2"]', "has no key 'selct'; did you mean 'select'?"),
        ("per_file_ignores = {}", "has no key 'per_file_ignores'; did you mean 'per-file-ignores'?"),
        ("colour = 1", "has no key 'colour'; the keys are cache-dir,"),
        ('select = "AMP2"', "select: expected a list of strings, not 'AMP2'"),
        ("select = [1]", "select: expected a list of strings"),
        ('ignore = ["clip-before-unscal"]', "ignore: no rule is called 'clip-before-unscal'; did you mean clip-"),
        ('per-file-ignores = ["a"]', "per-file-ignores: expected a table"),
        ('per-file-ignores = {"a" = ["AMP77"]}', "per-file-ignores: no rule is called 'AMP77'"),
        ("force-exclude = 1", "force-exclude: expected true or false, not 1"),
        ('fail-on = "fatal"', "fail-on: expected one of error, warning, note, not 'fatal'"),
        ("torch-version = 2.4", 'torch-version: expected a string such as "2.4", not 2.4'),
        ('torch-version = "new"', "torch-version: expected a version such as \"2.4\", not 'new'"),
        ('output-format = "xml"', "output-format: expected one of text, concise, json, github, sarif, not 'xml'"),
        ("jobs = 0", "jobs: expected a number of processes from 1, not 0"),
        ("jobs = true", "jobs: expected a number of processes, not True"),
    ],
)
def test_broken_settings_are_refused_naming_file_and_key(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.amp-doctor]\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_config(str(file))
    assert str(caught.value).startswith(f"{file}: [tool.amp-doctor] ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.amp-doctor\n", "not valid TOML"),
        ("[tool]\namp-doctor = 3\n", "tool.amp-doctor must be a table"),
        ("[tool.black]\n", "has no [tool.amp-doctor] table"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(str(file))
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_is_told() -> None:
    with pytest.raises(ConfigError, match="no such configuration file"):
        read_config("/nowhere/amp.toml")


def test_opt_in_rules_are_off() -> None:
    enabled = Configuration(isolated=True).settings_for("/").enabled_for("/a.py")
    assert enabled == {code for code in catalog.codes() if not code.startswith("AMP9")}
