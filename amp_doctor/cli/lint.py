"""`amp-doctor lint`: options -> a run, its report and the exit status."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from amp_doctor import config
from amp_doctor.cli import options as read
from amp_doctor.cli.output import COLOR, Progress, colored, complain, width, write, write_file
from amp_doctor.cli.render import preload, rendered
from amp_doctor.lint.run import Outcome, Plan, lint_paths, lint_text

if TYPE_CHECKING:
    from amp_doctor.config import Configuration, Settings

STDIN = "-"
CACHE = ".amp_doctor_cache"


@click.command("lint")
@click.argument("paths", nargs=-1)
@read.listed("--select", "Check these rules only: codes, prefixes (AMP2), names or ALL; may be repeated.")
@read.listed("--ignore", "Leave these rules out.")
@read.listed("--extend-select", "Check these rules as well.")
@read.listed("--extend-ignore", "Leave these rules out as well.")
@read.listed("--per-file-ignores", "Leave rules out in files that match.", read.per_file, "GLOB:RULES")
@read.listed("--exclude", "Skip these paths instead of the usual ones; .gitignore syntax.", read.patterns, "PATTERNS")
@read.listed("--extend-exclude", "Skip these paths as well.", read.patterns, "PATTERNS")
@click.option("--force-exclude", is_flag=True, default=None, help="Skip excluded paths even when they are named.")
@click.option("--torch-version", callback=read.version, metavar="X.Y", help="The torch version the code is for.")
@click.option("--fail-on", type=click.Choice(config.SEVERITIES), help="Least severity for exit 1.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 whatever is found.")
@click.option("--fix", is_flag=True, help="Apply safe fixes.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: fixes that change numerics as well.")
@click.option("--diff", is_flag=True, help="Show what --fix would change and write nothing; exit 1 if anything.")
@click.option("--output-format", type=click.Choice(config.FORMATS), help="How to report.")
@click.option("--output-file", "-o", type=click.Path(dir_okay=False), help="Report to a file.")
@click.option("--statistics", is_flag=True, help="Count findings per rule instead of listing them.")
@click.option("--stdin-filename", metavar="PATH", help="What the text on stdin is called, when PATHS is -.")
@click.option("--config", "config_file", type=click.Path(), help="Read settings from this TOML file.")
@click.option("--isolated", is_flag=True, help="Read no configuration file.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write the cache.")
@click.option("--cache-dir", metavar="DIR", help="Where to keep the cache.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="How many processes; by default as many as pay.")
@click.option("--show-settings", is_flag=True, help="Show what holds for the first path, and exit.")
@click.option("--verbose", "-v", is_flag=True, help="Tell what was done, and where the analysis kept silent.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing when there is nothing to report.")
@COLOR
def command(**options: Any) -> int:
    """Check Python files, notebooks and directories for misuse of mixed precision.

    PATHS default to the current directory; - reads from stdin.
    """
    paths: list[str] = list(options["paths"]) or ["."]
    _check(paths, options)
    configuration = _configuration(options)
    home = _home(options["stdin_filename"] or "." if paths == [STDIN] else paths[0])
    settings = configuration.settings_for(home)
    if options["show_settings"]:
        from amp_doctor.cli.render import settings_text

        write(settings_text(settings))
        return 0
    progress = Progress(wanted=not options["quiet"])
    style = "statistics" if options["statistics"] else settings.get("output_format", "text")
    plan = Plan(configuration, jobs=settings.get("jobs"), progress=progress, meanwhile=partial(preload, style))
    try:
        if paths == [STDIN]:
            outcome, plan = lint_text(sys.stdin.buffer.read(), options["stdin_filename"], plan)
        else:
            if not options["no_cache"]:
                plan = replace(plan, cache_dir=_cache_dir(settings, home))
            outcome = lint_paths(paths, plan)
        return _finish(outcome, plan, settings, options | {"style": style})
    finally:
        progress.close()


def _check(paths: list[str], options: dict[str, Any]) -> None:
    if STDIN in paths and len(paths) > 1:
        raise click.UsageError("- stands for stdin and cannot be given together with other paths")
    if paths == [STDIN] and sys.stdin is None:
        raise click.UsageError("- stands for stdin, which is closed")
    if options["stdin_filename"] and paths != [STDIN]:
        raise click.UsageError("--stdin-filename goes with -, which stands for stdin")
    if options["unsafe_fixes"] and not (options["fix"] or options["diff"]):
        raise click.UsageError("--unsafe-fixes goes with --fix or --diff")
    if options["isolated"] and options["config_file"]:
        raise click.UsageError("--isolated reads no configuration, --config names one")
    if options["select"]:
        _check_selected(options["select"])


def _check_selected(selectors: tuple[str, ...]) -> None:
    """A run that looks for nothing that lint could find would look clean."""
    from amp_doctor import catalog
    from amp_doctor.selection import PROBED, matching

    if all(code.startswith(PROBED) for code in matching(selectors, catalog.codes())):
        raise click.UsageError(f"--select {','.join(selectors)}: only `amp-doctor probe` finds these")


def _configuration(options: dict[str, Any]) -> Configuration:
    said = config.Said()
    said.update({key: options[key] for key in config.KEYS if options[key] is not None})  # type: ignore[typeddict-item]
    file: str | None = options["config_file"]
    return config.Configuration(said, os.path.abspath(file) if file else None, options["isolated"])


def _home(path: str) -> str:
    """The directory whose settings decide about the run as a whole."""
    place = os.path.abspath(path)
    return place if os.path.isdir(place) else os.path.dirname(place)


def _cache_dir(settings: Settings, home: str) -> str:
    """Where the cache lies: beside the configuration, else at the top of the project, else here."""
    if settings.cache_dir is not None:
        return settings.cache_dir
    if settings.file is not None:
        return os.path.join(settings.root, CACHE)
    here = os.getcwd()
    top = home if home.startswith(here) else here
    while not any(os.path.exists(os.path.join(top, mark)) for mark in (".git", "pyproject.toml", "setup.py")):
        if os.path.dirname(top) == top:
            return os.path.join(here, CACHE)
        top = os.path.dirname(top)
    return os.path.join(top, CACHE)


def _finish(outcome: Outcome, plan: Plan, settings: Settings, options: dict[str, Any]) -> int:
    """Fix if that is wanted, report, and tell the exit status."""
    if options["diff"]:
        return _diff(outcome, plan, options)
    if options["fix"]:
        from amp_doctor.lint.fixes import apply_all, mend_all

        outcome, plan = apply_all(outcome, mend_all(outcome, plan, options["unsafe_fixes"]), plan)
    report = outcome.report
    shown = [finding for finding in report.findings if not finding.suppressed]
    if not report.files and not report.errors:
        complain("no Python files found")
    if report.errors or shown or not options["quiet"]:
        _report(outcome, plan, options)
    if options["verbose"]:
        _tell_more(outcome, plan, settings)
    if report.errors:
        return 2
    order = config.SEVERITIES
    failing = order[: order.index(settings.get("fail_on", "warning")) + 1]
    return int(any(finding.severity in failing for finding in shown) and not options["exit_zero"])


def _diff(outcome: Outcome, plan: Plan, options: dict[str, Any]) -> int:
    from amp_doctor.lint.fixes import diff, mend_all

    mended = mend_all(outcome, plan, options["unsafe_fixes"])
    write(diff(mended))
    for error in outcome.report.errors:
        complain(f"{error.path}: {error.message}")
    if not options["quiet"]:
        complain(f"would fix {sum(one.count for one in mended)} of {len(outcome.report.findings)} findings")
    return 2 if outcome.report.errors else int(bool(mended) and not options["exit_zero"])


def _report(outcome: Outcome, plan: Plan, options: dict[str, Any]) -> None:
    style = options["style"]
    report, sources = outcome.report, dict[str, str]()
    if report.findings:
        from amp_doctor.lint.present import present

        report, sources = present(report, style in ("text", "json", "sarif"), plan.texts)
    output: str | None = options["output_file"]
    stream = sys.stdout
    if plan.texts is not None and options["fix"]:
        # The fixed text takes stdout, as in other linters, so the report goes to stderr.
        sys.stdout.buffer.write(b"".join(plan.texts.values()))
        stream = sys.stderr
    color = output is None and colored(options["color"], stream)
    text = rendered(style, report, sources, color=color, columns=width(), verbose=options["verbose"])
    if output is not None:
        write_file(output, text)
        return
    if style in ("json", "sarif") and isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    write(text, stream)


def _tell_more(outcome: Outcome, plan: Plan, settings: Settings) -> None:
    complain(f"settings: {settings.file or 'no configuration file'}")
    if plan.cache_dir is not None:
        complain(f"cache: {outcome.cached} of {outcome.report.files} reports were found in {plan.cache_dir}")
    complain(f"places that could not be judged: {outcome.report.silences}")
