"""What the tests share: linting a text in this process, `--bless`, and the refusal of skipped tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import pytest

from amp_doctor import catalog
from amp_doctor.lint.examine import examine
from amp_doctor.lint.fixes import Rules, mend
from amp_doctor.lint.project import Project
from amp_doctor.lint.source import Source
from amp_doctor.lint.suppress import settle
from amp_doctor.selection import Choice, chosen

if TYPE_CHECKING:
    from amp_doctor.finding import Finding
    from amp_doctor.lint.result import FileReport

ROOT = Path(__file__).resolve().parent.parent


class Settings(TypedDict, total=False):
    """How a text is linted: extra codes beside the default rules, and the torch version it is for."""

    select: tuple[str, ...]
    torch_version: tuple[int, ...] | None


def lint_text(code: str, path: str = "page.py", **settings: Unpack[Settings]) -> list[Finding]:
    """The findings of one text under all default rules and `select`, suppression comments honoured."""
    source = Source.from_text(path, code)
    return [finding for finding in _judged(source, settings)[1] if not finding.suppressed]


def fix_text(code: str, path: str = "page.py", **settings: Unpack[Settings]) -> str:
    """The text with every fix applied, unsafe ones included."""
    source = Source.from_text(path, code)
    report, findings = _judged(source, settings)
    rules = Rules(True, _enabled(settings), lambda changed: _examined(changed, settings))
    return mend(source, report, findings, rules)[0].code


def _judged(source: Source, settings: Settings) -> tuple[FileReport, list[Finding]]:
    report, enabled = _examined(source, settings), _enabled(settings)
    selected = [finding for finding in report.findings if finding.code in enabled]
    settled = settle(source.path, report.pragmas, selected, enabled.__contains__)
    return report, sorted(settled, key=lambda finding: finding.sort_key)


def _examined(source: Source, settings: Settings) -> FileReport:
    return examine(source.raw, source.path, None, Project(), settings.get("torch_version"))


def _enabled(settings: Settings) -> frozenset[str]:
    return chosen(catalog.codes(), [Choice(extend_select=settings.get("select", ()))])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite the generated parts of rules/README.md")
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails the run (make test)")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--bless"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A tool that is missing must not look like a test that passed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--no-skips"):
        return
    reporter.ensure_newline()
    for report in reporter.stats.get("skipped", []):
        reporter.write_line(f"skipped, which --no-skips refuses: {report.nodeid}: {report.longrepr}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
