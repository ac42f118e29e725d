"""The command line: the only place that prints, exits and reads sys.argv. A verb is loaded when it is called."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from amp_doctor import __version__
from amp_doctor.cli.output import complain, silence_stdout
from amp_doctor.errors import AmpDoctorError

BUG = 3
INTERRUPTED = 130
VERBS = ("lint", "probe", "check", "report", "explain", "rules")
ISSUES = "https://github.com/amp-doctor/amp-doctor/issues"


class Verbs(click.Group):
    """Each verb is the `command` of a module of its name in this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The verbs in the order in which they are helpful."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"amp_doctor.cli.{cmd_name}").command
        return command


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="amp-doctor", message="%(prog)s %(version)s")
def cli() -> None:
    """Finds what is wrong with the way PyTorch mixed precision is used: in the source, and in a run.

    Exit status: 0 nothing to report, 1 findings at or above --fail-on, 2 usage, configuration or unreadable
    input, 3 a bug of amp-doctor, 130 interrupted; the status of the probed script when that fails.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the status that DESIGN section 6 gives the outcome."""
    if not _hosts_a_script(arguments):
        # Importing libcst and lowering trees makes many objects and hardly any garbage: the collector would only get
        # in the way (it takes a tenth of the start-up).
        gc.set_threshold(200_000, 20, 20)
    sys.exit(status_of(arguments))


def status_of(arguments: list[str] | None) -> int:
    """Run the command line; the status to exit with."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and not _hosts_a_script(arguments):
            # A file name or a line of source that the terminal cannot show must not end the run.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(arguments, prog_name="amp-doctor", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except AmpDoctorError as error:
        complain(str(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return 0
    except Exception:  # noqa: BLE001 - the last net: a bug of ours ends with a report ready to paste
        return bug()
    return status if isinstance(status, int) else 0


def _hosts_a_script(arguments: list[str] | None) -> bool:
    """Whether a script of the user's is to run in this process, which then must be as Python makes it."""
    return (sys.argv[1:] if arguments is None else arguments)[:1] in (["probe"], ["check"])


def bug() -> int:
    """Say that it is our fault, with all that a report of it needs; the status to exit with."""
    import platform
    import traceback

    complain(
        f"this is a bug of amp-doctor, not of your code. Please report what follows at {ISSUES}\n\n"
        f"amp-doctor {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {' '.join(sys.orig_argv)}\n\n{traceback.format_exc()}"
    )
    return BUG
