"""Text -> the terminal, a pipe or a file; and what the terminal is like."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

import click

from amp_doctor.errors import WriteError

COLOR = click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)

# A progress bar for fewer files than this would be gone before it is seen.
MUCH_TO_DO = 24
WIDTH = 100


def write(text: str, stream: TextIO | None = None) -> None:
    """Print `text` as it is; a reader that has seen enough, as in `| head`, is no error."""
    try:
        out = stream or sys.stdout
        out.write(text)
        out.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:  # a full disk behind `> report.txt`
        silence_stdout()
        raise WriteError(f"the report cannot be written: {error.strerror or error}") from error


def write_file(file: str, text: str, option: str = "--output-file") -> None:
    """Write `text` to `file`; what goes wrong is told as a mistake in the `option` that named it."""
    try:
        with open(file, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
    except OSError as error:
        raise click.UsageError(f"{option} {file}: {error.strerror or error}") from error


def below(path: str, here: str) -> str:
    """`path` relative to the directory `here` when it lies below, with forward slashes."""
    inside = path.startswith(here + os.sep)
    return (path[len(here) + 1 :] if inside else path).replace(os.sep, "/")


def complain(text: str) -> None:
    """Say something on stderr."""
    click.echo(f"amp-doctor: {text}", err=True)


def silence_stdout() -> None:
    """Nobody reads any more: Python must not try to flush when it exits, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def colored(choice: str, stream: TextIO) -> bool:
    """Whether `stream` is to get colours: what was asked, else NO_COLOR, FORCE_COLOR, else whether it is a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns to write for."""
    told = os.environ.get("COLUMNS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    try:
        return min(os.get_terminal_size(sys.stdout.fileno()).columns, 120) or WIDTH
    except (OSError, ValueError):
        return WIDTH


class Progress:
    """A bar on stderr while many files are analysed; it is drawn from the second result on, and leaves no trace."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` files are analysed."""
        if not self._wanted or total < MUCH_TO_DO:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            # No thread of its own: worker processes are forked from this one.
            self._bar = Bar(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._task = self._bar.add_task("Analysing", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, refresh=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
