"""`amp-doctor explain CODE|NAME`."""

from __future__ import annotations

import sys

import click

from amp_doctor import catalog
from amp_doctor.cli.output import COLOR, colored, width, write
from amp_doctor.report.to_explain import to_explain


@click.command("explain")
@click.argument("rule", metavar="CODE|NAME")
@COLOR
def command(rule: str, color: str) -> None:
    """Show the page of a rule: what goes wrong, how to put it right, when it is right as it is."""
    write(to_explain(catalog.page(rule), width=width(), color=colored(color, sys.stdout)))
