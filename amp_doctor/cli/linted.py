"""A script -> what the linter finds in it and in the first-party modules it imports, asked in a process of its own.

The process that will run the script stays as Python makes it: nothing of the linter is loaded there.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amp_doctor.cli.output import below
from amp_doctor.errors import AmpDoctorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amp_doctor.finding import Finding
    from amp_doctor.lint.result import LintReport

ASK = "from amp_doctor.cli.linted import tell; tell()"


@dataclass(frozen=True, slots=True)
class Linted:
    """The report, its paths told as those of the probe are, and the texts of the files in it by path."""

    report: LintReport
    sources: Mapping[str, str]

    @property
    def shown(self) -> tuple[Finding, ...]:
        """The findings that no comment suppresses."""
        return tuple(finding for finding in self.report.findings if not finding.suppressed)


def speaks() -> bool:
    """Whether this process is the one that reports: rank 0 of torchrun, or the only one there is."""
    return os.environ.get("RANK", "0") == "0"


def linted(script: str) -> Linted:
    """Lint a script under the configuration that holds for it; an AmpDoctorError says why that is not possible."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    # Without -P a file of the user's, click.py say, would be imported in the place of the library.
    command = [sys.executable, "-P", "-c", ASK, script]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise AmpDoctorError(f"{script} cannot be linted: {last.removeprefix('amp-doctor: ')}")
    found: Linted = pickle.loads(done.stdout)
    return found


def tell() -> None:
    """In the other process: lint `sys.argv[1]` and what it imports, and put the answer on stdout."""
    from amp_doctor import config
    from amp_doctor.cli.imports import first_party
    from amp_doctor.lint.present import present
    from amp_doctor.lint.run import Plan, lint_paths, roots_of

    script = sys.argv[1]
    plan = Plan(config.Configuration(config.Said(), None, False), jobs=1)
    try:
        outcome = lint_paths([script, *first_party(script, roots_of([script]))], plan)
    except AmpDoctorError as error:
        sys.exit(f"amp-doctor: {error}")
    report, sources = present(outcome.report, True, None)
    here = os.getcwd()

    def name(path: str) -> str:
        return below(os.path.abspath(path), here)

    findings = tuple(
        replace(
            finding,
            path=name(finding.path),
            related=tuple(replace(step, path=name(step.path)) for step in finding.related),
        )
        for finding in report.findings
    )
    told = Linted(replace(report, findings=findings), {name(path): text for path, text in sources.items()})
    sys.stdout.buffer.write(pickle.dumps(told))
