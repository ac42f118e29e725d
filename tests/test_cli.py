"""The command line: options, exit statuses, where text goes; and that a run loads no more than it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amp_doctor import __version__, catalog
from amp_doctor.cli.output import Progress, colored, width
from amp_doctor.config import nearest
from tests.conftest import ROOT
from tests.invoke import Done, amp_doctor, planted

if TYPE_CHECKING:
    from pathlib import Path

ONE = "AMP201!  # autocast\n"
ONE_LINE = "a.py:1:1: AMP201 [error] planted AMP201!\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nearest.cache_clear()
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", planted)
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return folder


def lint(*arguments: str, stdin: bytes = b"") -> Done:
    return amp_doctor("lint", "--no-cache", "--output-format", "concise", *arguments, stdin=stdin)


def plant(here: Path, **texts: str) -> None:
    for name, text in texts.items():
        (here / f"{name}.py").write_text(text)


def test_version_and_help() -> None:
    assert amp_doctor("--version") == Done(0, f"amp-doctor {__version__}\n", "")
    for arguments in (
        ["--help"],
        ["-h"],
        ["lint", "--help"],
        ["probe", "--help"],
        ["report", "-h"],
        ["explain", "-h"],
        ["rules", "-h"],
    ):
        done = amp_doctor(*arguments)
        assert done.status == 0
        assert done.out.startswith("Usage: amp-doctor")
        assert done.err == ""
    listed = [line.split()[0] for line in amp_doctor("--help").out.splitlines()[-6:]]
    assert listed == ["lint", "probe", "check", "report", "explain", "rules"]


@pytest.mark.parametrize(
    ("text", "arguments", "status"),
    [
        ("x = 1\n", [], 0),
        ("AMP201!  # autocast\n", [], 1),
        ("AMP301!  # autocast\n", [], 1),
        ("AMP101!  # autocast\n", [], 0),
        ("AMP101!  # autocast\n", ["--fail-on", "note"], 1),
        ("AMP301!  # autocast\n", ["--fail-on", "error"], 0),
        ("AMP201!  # autocast\n", ["--fail-on", "error"], 1),
        ("AMP201!  # autocast\n", ["--exit-zero"], 0),
        ("AMP201!  # autocast\n", ["--ignore", "AMP2"], 0),
        ("AMP201!  # autocast\n", ["--select", "AMP3"], 0),
        ("AMP201!  # autocast\n", ["--select", "AMP3,clip-before-unscale"], 1),
        ("AMP201!  # autocast\n", ["--select", "AMP3", "--extend-select", "AMP201"], 1),
        ("AMP201!  # autocast\n", ["--extend-ignore", "clip-before-unscale"], 0),
        ("AMP201!  # autocast\n", ["--per-file-ignores", "a.*:AMP2,AMP3"], 0),
        ("AMP201!  # autocast\n", ["--per-file-ignores", "b.py:AMP2"], 1),
        ("AMP201!  # autocast # noqa: AMP201\n", [], 0),
    ],
)
def test_exit_status(here: Path, text: str, arguments: list[str], status: int) -> None:
    plant(here, a=text)
    assert lint(*arguments).status == status
    assert lint("a.py", *arguments).status == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--selct", "AMP2"], "No such option '--selct'"),
        (["--select", "AMP999"], "Invalid value for '--select': no rule is called 'AMP999'"),
        (["--ignore", "clip-befor-unscale"], "did you mean clip-before-unscale?"),
        (["--per-file-ignores", "AMP2"], "expected GLOB:RULES, not 'AMP2'"),
        (["--torch-version", "latest"], "expected a version such as \"2.4\", not 'latest'"),
        (["--fail-on", "fatal"], "'fatal' is not one of 'error', 'warning', 'note'"),
        (["--output-format", "xml"], "'xml' is not one of"),
        (["--jobs", "0"], "0 is not in the range x>=1"),
        (["--config", "gone.toml"], "gone.toml: no such configuration file"),
        (["--select", ""], "names no rule"),
        (
            ["--select", "AMP601,dead-loss-scale"],
            "--select AMP601,dead-loss-scale: only `amp-doctor probe` finds these",
        ),
        (["--per-file-ignores", "a.py:"], "names no rule"),
        (["--config", "a.toml", "--isolated"], "--isolated reads no configuration, --config names one"),
        (["--unsafe-fixes"], "--unsafe-fixes goes with --fix or --diff"),
        (["-", "a.py"], "- stands for stdin and cannot be given together with other paths"),
        (["a.py", "--stdin-filename", "b.py"], "--stdin-filename goes with -"),
        (["--output-file", "no/such/place"], "--output-file no/such/place: No such file or directory"),
        (["gone.py"], "gone.py: no such file or directory"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(here: Path, arguments: list[str], words: str) -> None:
    plant(here, a="x = 1\n")
    done = lint(*arguments)
    assert done.status == 2
    assert words in done.err + done.out
    assert "Traceback" not in done.err


def test_an_unknown_verb_is_wrong_usage() -> None:
    done = amp_doctor("lnt")
    assert done.status == 2
    assert "No such command 'lnt'" in done.err


def test_a_broken_configuration_ends_with_2(here: Path) -> None:
    plant(here, a=ONE)
    (here / "pyproject.toml").write_text('[tool.amp-doctor]\nselct = ["AMP2"]\n')
    done = lint()
    assert done.status == 2
    assert f"{here / 'pyproject.toml'}: [tool.amp-doctor] has no key 'selct'; did you mean 'select'?" in done.err
    nearest.cache_clear()
    assert lint("--isolated").status == 1


def test_a_broken_file_that_has_no_say_is_not_read(here: Path) -> None:
    plant(here, a=ONE)
    (here / "pyproject.toml").write_text('[tool.amp-doctor]\nselect = ["AMP2')
    (here / "other.toml").write_text('select = ["AMP3"]\n')
    assert lint().status == 2
    assert lint("--isolated").status == 1
    assert lint("--config", "other.toml").status == 0


def test_a_run_without_files_does_not_praise_them(here: Path) -> None:
    assert here.is_dir()
    done = amp_doctor("lint", "--no-cache", "gone.py")
    assert (done.status, done.out) == (2, "error: gone.py: no such file or directory\nNo file was checked.\n")


def test_configuration_is_found_named_or_left_out(here: Path) -> None:
    plant(here, a=ONE)
    (here / "pyproject.toml").write_text('[tool.amp-doctor]\nignore = ["AMP2"]\n')
    (here / "other.toml").write_text('select = ["AMP3"]\n')
    assert lint().status == 0
    assert lint("--select", "AMP201").status == 1
    assert lint("--isolated").status == 1
    assert lint("--config", "other.toml").status == 0
    (here / "pyproject.toml").write_text('[tool.amp-doctor]\nfail-on = "note"\noutput-format = "json"\n')
    plant(here, a="AMP101!  # autocast\n")
    done = amp_doctor("lint", "--no-cache")
    assert (done.status, json.loads(done.out)["files"]) == (1, 1)


def test_settings_are_shown(here: Path) -> None:
    (here / "pyproject.toml").write_text('[tool.amp-doctor]\nselect = ["AMP301"]\ntorch-version = "2.4"\n')
    done = lint("--show-settings", "--exclude", "old")
    assert done.status == 0
    assert done.out.splitlines() == [
        f'root = "{here}"',
        f'config = "{here / "pyproject.toml"}"',
        'rules = ["AMP001", "AMP003", "AMP004", "AMP301"]',
        "per-file-ignores = []",
        "default-excludes = false",
        f'excludes = ["{here}: old"]',
        "force-exclude = false",
        'fail-on = "warning"',
        'torch-version = "2.4"',
        'output-format = "concise"',
        "# jobs: not set",
        "# cache-dir: not set",
    ]


def test_torch_version_reaches_the_analysis(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(here, a="# autocast\n")

    def seen(source: object, project: object, torch_version: tuple[int, ...] | None) -> object:
        assert torch_version == (2, 1), torch_version
        return planted(source, project)  # type: ignore[arg-type]

    monkeypatch.setattr("amp_doctor.lint.analyse.analyse", seen)
    assert lint("--torch-version", "2.1") == Done(0, "", "")


def test_stdin(here: Path) -> None:
    assert lint("-", stdin=ONE.encode()) == Done(1, ONE_LINE.replace("a.py", "<stdin>"), "")
    named = lint("-", "--stdin-filename", "sub/b.py", stdin=ONE.encode())
    assert named == Done(1, ONE_LINE.replace("a.py", "sub/b.py"), "")
    text = amp_doctor("lint", "-", "--stdin-filename", "b.py", stdin=ONE.encode())
    assert "AMP201!  # autocast" in text.out
    (here / "pyproject.toml").write_text('[tool.amp-doctor]\nforce-exclude = true\nextend-exclude = ["sub"]\n')
    nearest.cache_clear()
    assert lint("-", "--stdin-filename", "sub/b.py", stdin=ONE.encode()).status == 0
    notebook = json.dumps({"cells": [{"cell_type": "code", "source": ONE}], "metadata": {}, "nbformat": 4})
    cell = lint("-", "--stdin-filename", "n.ipynb", stdin=notebook.encode())
    assert cell.out == "n.ipynb:cell 1:1:1: AMP201 [error] planted AMP201!\n"


@pytest.mark.parametrize("style", ["text", "concise", "json", "github", "sarif"])
def test_every_format_names_the_finding(here: Path, style: str) -> None:
    plant(here, a=ONE)
    done = amp_doctor("lint", "--no-cache", "--output-format", style)
    assert (done.status, done.err) == (1, "")
    assert "AMP201" in done.out
    assert "a.py" in done.out
    assert "\x1b" not in done.out
    file = here / "report"
    written = amp_doctor("lint", "--no-cache", "--output-format", style, "--output-file", str(file), "a.py")
    assert written == Done(1, "", "")
    assert file.read_text() == done.out


def test_statistics_and_quiet(here: Path) -> None:
    plant(here, a=ONE * 3 + "AMP301!\n")
    done = amp_doctor("lint", "--no-cache", "--statistics")
    assert done.status == 1
    assert done.out.startswith("3  AMP201  error         clip-before-unscale\n1  AMP301")
    plant(here, a="x = 1\n")
    assert amp_doctor("lint", "--no-cache").out == "Nothing was found wrong in 1 file.\n"
    assert amp_doctor("lint", "--no-cache", "--quiet") == Done(0, "", "")


def test_verbose_tells_what_was_done(here: Path) -> None:
    plant(here, a="# autocast silent silent\n")
    done = amp_doctor("lint", "--verbose", "--no-cache")
    assert done.status == 0
    assert "2 places could not be judged and stayed silent." in done.out
    assert done.err.splitlines() == [
        "amp-doctor: settings: no configuration file",
        "amp-doctor: places that could not be judged: 2",
    ]


def test_nothing_to_lint_is_no_error(here: Path) -> None:
    done = lint()
    assert done == Done(0, "", "amp-doctor: no Python files found\n")


def test_files_are_reported_in_order_whatever_the_number_of_processes(here: Path) -> None:
    for number in range(30):
        plant(here, **{f"f{number:02}": "AMP201!  # autocast\n" * (30 - number)})
    one = lint("--jobs", "1")
    assert one.status == 1
    assert lint("--jobs", "4") == one
    assert lint(*(f"f{number:02}.py" for number in reversed(range(30)))) == one
    assert one.out.splitlines() == sorted(one.out.splitlines(), key=lambda line: (line[:6], int(line.split(":")[1])))


def test_a_bug_of_ours_ends_with_3_and_a_report(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(here, a=ONE)

    def broken(*arguments: object) -> object:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("amp_doctor.lint.run.discover", broken)
    done = lint()
    assert done.status == 3
    assert done.out == ""
    assert f"amp-doctor {__version__}, Python 3." in done.err
    assert "command: " in done.err
    assert done.err.rstrip().endswith("ZeroDivisionError: planted")


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("amp_doctor.lint.run.discover", interrupted)
    assert lint() == Done(130, "", "\namp-doctor: interrupted\n")


def test_explain_by_code_and_by_name() -> None:
    by_code = amp_doctor("explain", "amp201")
    assert by_code.status == 0
    assert by_code.out.startswith("# AMP201 · clip-before-unscale\n")
    assert amp_doctor("explain", "clip-before-unscale") == by_code
    unknown = amp_doctor("explain", "clip-befor-unscale")
    assert unknown.status == 2
    assert "did you mean clip-before-unscale?" in unknown.err


def test_rules_are_listed() -> None:
    listed = json.loads(amp_doctor("rules", "--output-format", "json").out)
    assert [rule["code"] for rule in listed] == list(catalog.codes())
    text = amp_doctor("rules").out
    assert all(code in text for code in catalog.codes())


@pytest.mark.parametrize(
    ("choice", "environment", "terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_when_there_are_colours(
    monkeypatch: pytest.MonkeyPatch, choice: str, environment: dict[str, str], terminal: bool, wanted: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert colored(choice, sys.stdout) is wanted


def test_width_is_that_of_the_terminal_or_what_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert width() == 100
    monkeypatch.setenv("COLUMNS", "72")
    assert width() == 72


def test_colours_when_asked(here: Path) -> None:
    plant(here, a=ONE)
    assert "\x1b[" in amp_doctor("lint", "--no-cache", "--color", "always").out


def test_a_progress_bar_is_for_people_who_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress(wanted=True)
    progress(1, 3)
    assert capsys.readouterr().err == ""
    progress(1, 300)
    progress(150, 300)
    progress.close()
    assert "Analysing" in capsys.readouterr().err


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "amp_doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)})


def test_as_a_module_and_into_a_reader_that_leaves(here: Path) -> None:
    plant(here, a="AMP201(\n" * 2000)
    assert run("--version").stdout == f"amp-doctor {__version__}\n"
    pipeline = f"{sys.executable} -m amp_doctor rules | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", pipeline], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.stderr == ""
    assert done.stdout.startswith("AMP001")


def test_a_closed_stdin_is_wrong_usage() -> None:
    command = ["sh", "-c", '"$0" -m amp_doctor lint - <&-', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert "Error: - stands for stdin, which is closed" in done.stderr


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("/dev/full", 2, "amp-doctor: the report cannot be written: No space left on device\n"),
        ("&-", 0, ""),
    ],
)
def test_stdout_that_takes_nothing_is_no_bug(target: str, status: int, words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m amp_doctor rules >{target}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (status, words)


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("x = 1\n", {"libcst", "torch", "rich", "pathspec", "json", "pathlib", "multiprocessing", "tomllib"}),
        ("import torch\nwith torch.autocast('cuda'):\n    pass\n", {"torch", "rich", "pathspec", "multiprocessing"}),
    ],
)
def test_a_run_loads_no_more_than_it_needs(here: Path, text: str, absent: set[str]) -> None:
    plant(here, a=text)
    code = (
        "import sys\nfrom amp_doctor.cli import status_of\nfrom amp_doctor.lint import workers\n"
        "workers.can_fork = lambda: False\n"
        "status = status_of(['lint', '--no-cache', 'a.py'])\nprint(status, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
    )
    status, *loaded = done.stdout.splitlines()[-1].split()
    assert status == "0"
    assert absent.isdisjoint(loaded), sorted(absent & set(loaded))
