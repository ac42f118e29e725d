"""What the tests share: linting a text in this process, `--bless`, and the refusal of skipped tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amp_doctor.lint.analyse import analyse
from amp_doctor.lint.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amp_doctor.finding import Finding

ROOT = Path(__file__).resolve().parent.parent


def lint_text(
    code: str, path: str = "page.py", select: Iterable[str] = (), torch_version: tuple[int, ...] | None = None
) -> list[Finding]:
    """The findings of one text under all default rules and `select`, suppression comments honoured."""
    from amp_doctor.lint.source import Source
    from amp_doctor.lint.suppress import suppress

    source = Source.from_text(path, code)
    found = analyse(source, Project(), torch_version).findings
    shown = [f for f in suppress(source, found) if not f.suppressed]
    opted = {"AMP9"} if not select else {"AMP9"} - {code[:4] for code in select}
    return [f for f in shown if f.code[:4] not in opted or f.code in select]


def fix_text(
    code: str, path: str = "page.py", select: Iterable[str] = (), torch_version: tuple[int, ...] | None = None
) -> str:
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
    skipped = reporter.stats.get("skipped", []) if reporter is not None else []
    if skipped and session.config.getoption("--no-skips"):
        reporter.write_line("")
        for report in skipped:
            reporter.write_line(f"skipped, which --no-skips refuses: {report.nodeid}: {report.longrepr}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
