"""`amp-doctor report PROFILE...`: saved profiles -> their report; torch is not needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from amp_doctor.cli.diagnosed import Destination, report_options
from amp_doctor.cli.profiles import merged, proven


@click.command("report")
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE...")
@report_options
def command(**options: Any) -> int:
    """Show what saved profiles say; several of one script and mode are added up, such as those of the ranks of a run.

    PROFILE is a file that `amp-doctor probe --profile FILE` wrote, or its JSON report. What --verify has shown is told
    again where there is one file.
    """
    profile = merged(options["profiles"])
    destination = Destination.of(options)
    if destination.shows_source:
        from amp_doctor.cli.probe import beside

        destination = replace(destination, lint=beside(profile.script))
    return destination.deliver(profile, options["fail_on"], advice=proven(options["profiles"]))
