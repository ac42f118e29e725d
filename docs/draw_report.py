"""A command of amp-doctor, as a real terminal shows it -> an SVG for the README.

python docs/draw_report.py docs/report.svg lint --isolated --no-cache --exit-zero fixtures/demo/train.py
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 100


# Options that change nothing in what is seen.
UNSEEN = {"--isolated", "--no-cache", "--exit-zero", "--fail-on", "never"}


def main(target: str, *command: str) -> None:
    """Run `command` on a terminal of WIDTH columns and draw what it shows."""
    typed = " ".join(word for word in command if word not in UNSEEN)
    text = Text.from_ansi(f"$ amp-doctor {typed}\n{on_terminal(command)}")
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text, highlight=False, soft_wrap=True)
    drawn = console.export_svg(title="amp-doctor", theme=MONOKAI, unique_id="amp-doctor")
    Path(target).write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n", "utf-8")


def on_terminal(arguments: tuple[str, ...]) -> str:
    """What the command line writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, WIDTH, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS"}} | {"TERM": "xterm-256color"}
    command = [sys.executable, "-m", "amp_doctor", *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        chunks = []
        while chunk := _read(ours):
            chunks.append(chunk)
        complaint = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        sys.exit(complaint)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end was closed
        return b""


if __name__ == "__main__":
    main(*sys.argv[1:])
