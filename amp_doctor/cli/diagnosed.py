"""A profile -> its report in the form that was asked for, where it was asked for, and the exit status."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from amp_doctor.cli.output import COLOR, colored, width, write, write_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Profile, Source
    from amp_doctor.diagnosis.recommendation import Recommendation
    from amp_doctor.finding import Finding

FAIL_ON = ("error", "warning", "note", "never")


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `probe` and `report` share."""
    for option in (
        COLOR,
        click.option(
            "--fail-on",
            type=click.Choice(FAIL_ON),
            default="warning",
            show_default=True,
            help="Least severity of a finding for exit 1.",
        ),
        click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="Report to a file."),
        click.option(
            "--output-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How to report.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a report goes and how: decided before a script runs, which may change directory and environment."""

    style: str
    output: str | None
    color: bool
    columns: int
    here: str

    @classmethod
    def of(cls, options: dict[str, Any]) -> Destination:
        """What the options and the terminal say now."""
        output = os.path.abspath(options["output"]) if options["output"] else None  # noqa: PTH100 - no link is followed
        color = output is None and colored(options["color"], sys.stdout)
        return cls(options["output_format"], output, color, width(), os.getcwd())  # noqa: PTH109

    def deliver(self, profile: Profile, fail_on: str, before: str = "") -> int:
        """Diagnose, report, and tell the status that the findings ask for; `before` parts a text from what precedes."""
        from amp_doctor.diagnosis.recommend import recommend
        from amp_doctor.diagnosis.symptoms import findings

        found = [replace(finding, path=self._shown(finding.path)) for finding in findings(profile)]
        text = self._text(profile, found, recommend(profile))
        if self.output is not None:
            write_file(self.output, text, "--output")
        else:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8" if self.style == "json" else None, errors="backslashreplace")
            write(before + text if self.style == "text" else text)
        order = FAIL_ON[: FAIL_ON.index(fail_on) + 1] if fail_on != "never" else ()
        return int(any(finding.severity in order for finding in found))

    def _text(self, profile: Profile, found: list[Finding], advice: Recommendation) -> str:
        if self.style == "json":
            from amp_doctor.report.to_probe_json import to_probe_json

            return to_probe_json(profile, found, advice)
        from amp_doctor.report.to_profile_text import to_profile_text

        unicode = self.output is not None or _can_draw(sys.stdout)
        return to_profile_text(
            self._placed(profile), found, advice, width=self.columns, color=self.color, unicode=unicode
        )

    def _shown(self, path: str) -> str:
        """Relative to the working directory when it lies below, with forward slashes."""
        inside = path.startswith(self.here + os.sep)
        return (path[len(self.here) + 1 :] if inside else path).replace(os.sep, "/")

    def _placed(self, profile: Profile) -> Profile:
        """The same profile with its paths as they are shown."""

        def placed(source: Source | None) -> Source | None:
            return source and replace(source, path=self._shown(source.path))

        first = profile.first_nonfinite
        return replace(
            profile,
            layers=tuple(replace(layer, source=placed(layer.source)) for layer in profile.layers),
            operators=tuple(replace(one, source=placed(one.source)) for one in profile.operators),
            first_nonfinite=first and replace(first, source=placed(first.source)),
        )


def preload(style: str) -> None:
    """Load what a report needs now, and not after a script that may change directory, `sys.path` or the limits."""
    from amp_doctor.diagnosis import recommend, symptoms  # noqa: F401
    from amp_doctor.diagnosis.registry import symptoms as registered

    if style == "json":
        from amp_doctor.report import to_probe_json  # noqa: F401
    else:
        from amp_doctor.report import to_profile_text  # noqa: F401
    registered()


def _can_draw(stream: TextIO) -> bool:
    """Whether the blocks of a bar can be written there."""
    from amp_doctor.report.bars import BLOCKS

    try:
        BLOCKS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
