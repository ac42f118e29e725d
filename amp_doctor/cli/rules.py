"""`amp-doctor rules`."""

from __future__ import annotations

import sys

import click

from amp_doctor import catalog
from amp_doctor.cli.output import COLOR, colored, width, write
from amp_doctor.report.to_rules import rules_json, rules_text


@click.command("rules")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@COLOR
def command(output_format: str, color: str) -> None:
    """List all rules."""
    pages = [catalog.page(code) for code in catalog.codes()]
    if output_format == "json":
        write(rules_json(pages))
    else:
        write(rules_text(pages, width=width(), color=colored(color, sys.stdout)))
