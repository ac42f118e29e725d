"""A profile -> its report in the form that was asked for, where it was asked for, and the exit status."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from amp_doctor.cli.forms import Case, in_form, preload_forms, source_text
from amp_doctor.cli.output import COLOR, below, colored, width, write, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amp_doctor.cli.linted import Linted
    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding

FAIL_ON = ("error", "warning", "note", "never")
FORMATS = ("text", "json", "sarif", "html")
# A file of source beyond this is no source: none of its lines is quoted.
LARGEST = 4_000_000


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `probe`, `report` and `check` share."""
    for option in (
        COLOR,
        click.option(
            "--fail-on",
            type=click.Choice(FAIL_ON),
            default="warning",
            show_default=True,
            help="Least severity of a finding for exit 1.",
        ),
        click.option(
            "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report as a web page, too."
        ),
        click.option("--output", "-o", type=click.Path(dir_okay=False), metavar="FILE", help="Report to a file."),
        click.option(
            "--output-format",
            "--format",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="How to report; html is one file that opens offline.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a report goes and how: decided before a script runs, which may change directory and environment.

    `lint` is what the linter found in the same script, for the forms that show it; with `merged` its findings stand
    in every form and count for the exit status, but for those that the run has cleared.
    """

    style: str
    output: str | None
    color: bool
    columns: int
    here: str
    html: str | None = None
    lint: Linted | None = None
    merged: bool = False

    @classmethod
    def of(cls, options: dict[str, Any], lint: Linted | None = None, merged: bool = False) -> Destination:
        """What the options and the terminal say now."""
        # As the name is given: a link is written through, not looked behind.
        output, html = (os.path.abspath(file) if file else None for file in (options["output"], options["html"]))
        if options["output_format"] == "html" and output is None and sys.stdout.isatty():
            raise click.UsageError("a page is not for a terminal: --format html goes with -o FILE")
        color = output is None and colored(options["color"], sys.stdout)
        return cls(options["output_format"], output, color, width(), os.getcwd(), html, lint, merged)

    @property
    def shows_source(self) -> bool:
        """Whether findings of the linter have a place in what is reported."""
        return self.merged or self.html is not None or self.style == "html"

    def deliver(self, profile: Profile, fail_on: str, before: str = "", advice: Recommendation | None = None) -> int:
        """Diagnose, report, and tell the status that the findings ask for; `before` parts a text from what precedes.

        `advice` is the recommendation where one is known already, because it was tried.
        """
        case = self._case(profile, advice)
        self._put(in_form(self.style, case, self), before)
        if self.html is not None:
            write_file(self.html, in_form("html", case, self), "--html")
        return failing((*case.found, *case.counted), fail_on)

    def deliver_unrun(self, profile: Profile) -> None:
        """Report what the linter found; `profile` is empty but for a note that says why there was no run."""
        case = self._case(profile)
        self._put(source_text(case, self) if self.style == "text" else in_form(self.style, case, self), "")
        if self.html is not None:
            write_file(self.html, in_form("html", case, self), "--html")

    def _case(self, profile: Profile, advice: Recommendation | None = None) -> Case:
        from amp_doctor.diagnosis.recommend import recommend
        from amp_doctor.diagnosis.relocated import relocated
        from amp_doctor.diagnosis.symptoms import findings

        found = [replace(finding, path=below(finding.path, self.here)) for finding in findings(profile)]
        placed = relocated(profile, lambda source: replace(source, path=below(source.path, self.here)))
        sources = self._sources(placed, found) if self.shows_source or self.style == "sarif" else {}
        return Case(profile, placed, found, advice or recommend(placed), self.lint, self.merged, sources)

    def _put(self, text: str, before: str) -> None:
        if self.output is not None:
            write_file(self.output, text, "--output")
            return
        if isinstance(sys.stdout, io.TextIOWrapper):
            encoding = "utf-8" if self.style != "text" else None
            sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
        write(before + text if self.style == "text" else text)

    def _sources(self, placed: Profile, found: Iterable[Finding]) -> dict[str, str]:
        """The texts of the files that lines are quoted from, as far as they can be read."""
        paths = {one.path for one in found} | {one.source.path for one in placed.operators if one.source}
        texts = dict(self.lint.sources) if self.lint else {}
        for path in sorted(paths - texts.keys()):
            try:
                # Joined with the directory that holds for the report: the script may have left it.
                with open(os.path.join(self.here, path), encoding="utf-8", errors="replace") as file:
                    texts[path] = file.read(LARGEST)
            except (OSError, ValueError):
                continue
        return texts


def failing(found: Iterable[Finding], fail_on: str) -> int:
    """1 when there is a finding at or above `fail_on`, else 0."""
    order = FAIL_ON[: FAIL_ON.index(fail_on) + 1] if fail_on != "never" else ()
    return int(any(finding.severity in order for finding in found))


def preload(destination: Destination) -> None:
    """Load what a report needs now, and not after a script that may change directory, `sys.path` or the limits."""
    from amp_doctor.diagnosis import recommend, relocated, symptoms  # noqa: F401
    from amp_doctor.diagnosis.registry import symptoms as registered

    preload_forms({destination.style, *(["html"] if destination.html else [])}, destination.merged)
    registered()
