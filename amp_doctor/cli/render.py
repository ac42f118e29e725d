"""A report in the form that was asked for, and the settings as TOML; what a form needs is loaded with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.config import Settings
    from amp_doctor.lint.result import LintReport


def rendered(
    style: str, report: LintReport, sources: dict[str, str], *, color: bool, columns: int, verbose: bool
) -> str:
    """`style` is one of config.FORMATS, or statistics."""
    codes = sorted({finding.code for finding in report.findings})
    match style:
        case "json":
            from amp_doctor.report.to_json import to_json

            return to_json(report, sources)
        case "sarif":
            from amp_doctor import catalog
            from amp_doctor.report.to_sarif import to_sarif

            return to_sarif(report, sources, {code: catalog.page(code) for code in codes})
        case "github":
            from amp_doctor.report.to_github import to_github

            return to_github(report)
        case "concise":
            from amp_doctor.report.to_concise import to_concise

            return to_concise(report)
        case "statistics":
            from amp_doctor.report.statistics import to_statistics

            return to_statistics(report)
        case "text" if not (report.findings or report.errors or report.fixed or verbose):
            # What most runs end with; the whole report would take as long to load as the run.
            from amp_doctor.report.summary import sentence
            from amp_doctor.report.text import rendered as styled

            return styled([[(sentence(report), "good")]], columns, color)
        case _:
            from amp_doctor.report.to_text import to_text

            summaries: dict[str, str] = {}
            if codes:
                from amp_doctor import catalog

                summaries = {code: catalog.summary(code) for code in codes}
            return to_text(report, sources, summaries, width=columns, color=color, verbose=verbose)


def preload(style: str) -> None:
    """Load what a report with findings needs; called while worker processes are at work."""
    from amp_doctor import catalog  # noqa: F401
    from amp_doctor.lint import present, settle  # noqa: F401

    if style == "text":
        import tomllib  # noqa: F401

        from amp_doctor.report import to_text  # noqa: F401


def settings_text(settings: Settings) -> str:
    """What holds, key by key; readable as TOML."""
    import json

    version = ".".join(map(str, settings.torch_version)) if settings.torch_version else None
    lines = {
        "root": settings.root,
        "config": settings.file,
        "rules": sorted(settings.enabled_for(settings.root)),
        "per-file-ignores": [f"{glob}:{','.join(rules)}" for glob, rules in settings.get("per_file_ignores", ())],
        "default-excludes": settings.default_excludes,
        "excludes": [f"{base}: {glob}" for base, globs in settings.excludes for glob in globs],
        "force-exclude": settings.force_exclude,
        "fail-on": settings.get("fail_on", "warning"),
        "torch-version": version,
        "output-format": settings.get("output_format", "text"),
        "jobs": settings.get("jobs"),
        "cache-dir": settings.cache_dir,
    }
    return "".join(
        f"# {key}: not set\n" if value is None else f"{key} = {json.dumps(value)}\n" for key, value in lines.items()
    )
