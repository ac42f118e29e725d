"""The line that shows how far a probed script is, and that the script's own output is not disturbed by it."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from amp_doctor.cli.progress import ERASE, PAUSE, WAITING, StepLine
from tests.cli.terminal import shown
from tests.conftest import ROOT


class Terminal(io.TextIOWrapper):
    """One terminal, to which stdout and stderr both go."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """What stdout and stderr of a test have shown."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self._patch = patch
        self._shown = io.BytesIO()

    def start(self) -> StepLine:
        """A line on this screen; not in a fixture, after which pytest puts its own streams back."""
        for name in ("stdout", "stderr"):
            self._patch.setattr(sys, name, Terminal(self._shown, "utf-8", write_through=True, newline=""))
        steps = StepLine(self.clock)
        steps.start()
        return steps

    def close(self) -> None:
        self._shown.close()

    @property
    def text(self) -> str:
        return self._shown.getvalue().decode()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("WORLD_SIZE", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return Screen(monkeypatch)


def line(text: str) -> str:
    return f"{ERASE}amp-doctor: {text}\r"


def step(done: int, total: int, filled: int) -> str:
    return line(f"[{'#' * filled}{'.' * (24 - filled)}] step {done} of {total}")


def test_it_waits_counts_and_leaves_no_trace(screen: Screen) -> None:
    steps = screen.start()
    wanted = line(WAITING)
    assert screen.text == wanted
    steps(1, 50)
    assert screen.text == wanted, "four times a second is enough"
    screen.clock.now += PAUSE
    steps(25, 50)
    wanted += step(25, 50, 12)
    assert screen.text == wanted
    steps.close()
    assert screen.text == wanted + ERASE
    steps.close()
    assert screen.text == wanted + ERASE


def test_it_is_away_before_the_script_writes_and_back_after_a_line(screen: Screen) -> None:
    screen.start()
    wanted = line(WAITING)
    print("epoch 1")
    wanted += ERASE + "epoch 1\n"
    assert screen.text == wanted
    screen.clock.now += PAUSE
    print("loss", file=sys.stderr)
    wanted += "loss\n" + line(WAITING)
    assert screen.text == wanted


def test_it_stays_away_in_the_middle_of_a_line(screen: Screen) -> None:
    steps = screen.start()
    sys.stderr.write("\r 10%|#         |")
    wanted = line(WAITING) + ERASE + "\r 10%|#         |"
    for done in range(1, 4):
        screen.clock.now += 1
        steps(done, 50)
    assert screen.text == wanted
    sys.stderr.write("")
    steps(4, 50)
    assert screen.text == wanted
    sys.stderr.write("\n")
    assert screen.text == wanted + "\n" + step(4, 50, 1)


def test_the_streams_of_the_script_stay_the_objects_they_are(screen: Screen) -> None:
    steps = screen.start()
    assert type(sys.stdout) is type(sys.stderr) is Terminal
    print("written")
    assert sys.stdout.write("four") == 4
    with pytest.raises(TypeError):
        sys.stdout.write(4)  # type: ignore[arg-type]
    steps.close()
    assert "write" not in vars(sys.stdout)
    assert "write" not in vars(sys.stderr)


def test_a_narrow_terminal_gets_what_fits(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen.start()
    assert screen.text == f"{ERASE}amp-doctor: waiting\r"


def test_a_terminal_that_is_gone_is_no_error(screen: Screen) -> None:
    steps = screen.start()
    screen.close()
    screen.clock.now += 1
    steps(1, 2)
    steps.close()


@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "2"}, {"TERM": "dumb"}])
def test_there_is_no_line_where_it_would_disturb(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    steps = screen.start()
    steps(1, 2)
    steps.close()
    assert screen.text == ""


def on_terminal(code: str, script: str) -> str:
    """What a terminal got from `script` of sh, whose "$0" -c "$1" runs `code` with stderr on that terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    environment.pop("WORLD_SIZE", None)
    command = ["sh", "-c", script, sys.executable, code]
    subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, check=True)
    return shown(theirs, ours)


STEPS = """\
import os
from amp_doctor.cli.progress import StepLine
line = StepLine()
line.start({diverted})
if {diverted}:
    os.dup2(2, 1)
for n in range(3):
    print('line', n)
    line(n, 3)
print('no end', end='')
line.close()
"""


@pytest.mark.parametrize(
    ("script", "diverted"), [('"$0" -c "$1"', False), ('"$0" -c "$1" >/dev/null', True), ('"$0" -c "$1" | cat', True)]
)
def test_on_a_real_terminal_the_text_of_the_script_is_whole(script: str, diverted: bool) -> None:
    written = on_terminal(STEPS.format(diverted=diverted), script)
    assert written.startswith(line(WAITING) + ERASE + "line 0\r\n")
    shown = [part.rpartition("\x1b[K")[2].rpartition("\r")[2] for part in written.split("\r\n")]
    assert shown == ["line 0", "line 1", "line 2", "no end"]


def test_into_a_pipe_there_is_no_line_and_into_a_file_there_is() -> None:
    code = STEPS.format(diverted=False)
    assert on_terminal(code, '"$0" -c "$1" | cat') == "line 0\r\nline 1\r\nline 2\r\nno end"
    assert on_terminal(code, '"$0" -c "$1" >/dev/null').startswith(line(WAITING))


def test_there_is_none_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steps = StepLine(Clock())
    steps.start()
    steps(1, 2)
    steps.close()
    assert capsys.readouterr() == ("", "")
