"""What the tests share: linting a text in this process, `--bless`, and the refusal of skipped tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import pytest

from amp_doctor import catalog
from amp_doctor.lint.analyse import analyse
from amp_doctor.lint.project import Project
from amp_doctor.lint.source import Source
from amp_doctor.lint.suppress import suppress
from amp_doctor.selection import Choice, chosen

if TYPE_CHECKING:
    from amp_doctor.finding import Finding

ROOT = Path(__file__).resolve().parent.parent


class Settings(TypedDict, total=False):
    """How a text is linted: extra codes beside the default rules, and the torch version it is for."""

    select: tuple[str, ...]
    torch_version: tuple[int, ...] | None


def lint_text(code: str, path: str = "page.py", **settings: Unpack[Settings]) -> list[Finding]:
    """The findings of one text under all default rules and `select`, suppression comments honoured."""
    source = Source.from_text(path, code)
    enabled = chosen(catalog.codes(), [Choice(extend_select=settings.get("select", ()))])
    found = analyse(source, Project(), settings.get("torch_version")).findings
    shown = suppress(source, [f for f in found if f.code in enabled], enabled.__contains__)
    return sorted((f for f in shown if not f.suppressed), key=lambda f: f.sort_key)


def fix_text(code: str, path: str = "page.py", **settings: Unpack[Settings]) -> str:
    """The text with every fix applied, unsafe ones included."""
    raise NotImplementedError


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
    for report in reporter.stats.get("skipped", []):
        reporter.write_line(f"skipped, which --no-skips refuses: {report.nodeid}: {report.longrepr}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
