"""`amp-doctor check SCRIPT`: the linter on the source, the probe on a run, and one report of both."""

from __future__ import annotations

import os
from typing import Any

import click

from amp_doctor.cli import probe
from amp_doctor.cli.diagnosed import Destination, failing
from amp_doctor.cli.imports import file_of
from amp_doctor.cli.linted import Linted, linted, speaks
from amp_doctor.cli.output import complain
from amp_doctor.diagnosis.profile import Profile
from amp_doctor.errors import AmpDoctorError

UNPARSED = ("AMP001", "AMP004")


@click.command(
    "check",
    # Whatever the probe can do can be asked for here too.
    params=list(probe.command.params),
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
def command(**options: Any) -> int:
    """Lint a training script and the modules it imports, run it under the probe, and report both together.

    A finding in the source that the run confirms or clears says so; cleared ones do not count for the exit status.
    What cannot be run is linted all the same. Exit status: that of the script when it fails, 130 when it is
    interrupted, 2 when a file cannot be read, else 1 when there are findings at or above --fail-on.
    """
    if not options["script"]:
        raise click.UsageError("there is no script to check; `amp-doctor check train.py --lr 0.1`, say")
    probe.check(options)
    source = file_of(options["script"], options["as_module"])
    lint = linted(source) if source is not None and speaks() else None
    destination = Destination.of(options, lint, merged=True)
    if lint is not None and (reason := _unreadable(lint, source or "")):
        return _without_run(destination, lint, options, reason)
    try:
        return probe.hosted(options, destination)
    except AmpDoctorError as error:
        if lint is None:
            raise
        return _without_run(destination, lint, options, str(error))


def _unreadable(lint: Linted, source: str) -> str:
    """Why the script itself cannot be run, as far as the linter can tell; empty when it can."""
    named = os.path.normpath(source)
    met = [one for one in lint.report.findings if one.code in UNPARSED and os.path.normpath(one.path) == named]
    told = [*(one.message for one in met), *(one.message for one in lint.report.errors)]
    return f"{source}: {told[0]}" if told else ""


def _without_run(destination: Destination, lint: Linted, options: dict[str, Any], reason: str) -> int:
    """Report what the linter found, and that there was no run."""
    told = f"the script was not run: {reason}"
    destination.deliver_unrun(Profile(script=options["script"], notes=(told,)))
    complain(told)
    return 2 if lint.report.errors else failing(lint.shown, options["fail_on"])
