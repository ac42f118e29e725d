"""A report in the form that was asked for, and the settings as TOML; what a form needs is loaded with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from amp_doctor import catalog

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
            from amp_doctor.report.to_json import to_json  # noqa: PLC0415

            return to_json(report, sources)
        case "sarif":
            from amp_doctor.report.to_sarif import to_sarif  # noqa: PLC0415

            return to_sarif(report, sources, {code: catalog.page(code) for code in codes})
        case "github":
            from amp_doctor.report.to_github import to_github  # noqa: PLC0415

            return to_github(report)
        case "concise":
            from amp_doctor.report.to_concise import to_concise  # noqa: PLC0415

            return to_concise(report)
        case "statistics":
            from amp_doctor.report.statistics import to_statistics  # noqa: PLC0415

            return to_statistics(report)
        case _:
            from amp_doctor.report.to_text import to_text  # noqa: PLC0415

            summaries = {code: catalog.page(code).summary for code in codes}
            return to_text(report, sources, summaries, width=columns, color=color, verbose=verbose)


def settings_text(settings: Settings) -> str:
    """What holds, key by key; readable as TOML."""
    version = ".".join(map(str, settings.torch_version)) if settings.torch_version else None
    lines = [
        ("root", settings.root.as_posix()),
        ("config", settings.file and settings.file.as_posix()),
        ("rules", sorted(settings.enabled)),
        ("per-file-ignores", [f"{glob}:{','.join(sorted(codes))}" for glob, codes in settings.per_file_ignores]),
        ("default-excludes", settings.default_excludes),
        ("excludes", [f"{base.as_posix()}: {glob}" for base, globs in settings.excludes for glob in globs]),
        ("force-exclude", settings.force_exclude),
        ("fail-on", settings.fail_on.value),
        ("torch-version", version),
        ("output-format", settings.output_format),
        ("jobs", settings.jobs),
        ("cache-dir", settings.cache_dir),
    ]
    return "".join(
        f"{key} = {json.dumps(value)}\n" if value is not None else f"# {key}: not set\n" for key, value in lines
    )
