"""`make ecosystem`: lint published packages and compare with fixtures/ecosystem.toml, where every finding has its reason.

Fails on a finding that is not listed, on one that is listed and has vanished, on a crash, and on a reason still to
be written. `--bless` rewrites the list to what is found; a new entry has the reason TODO.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.benchmarks.packages import sources
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

LIST = ROOT / "fixtures" / "ecosystem.toml"
TODO = "TODO"
HEADER = """\
# What `make ecosystem` finds in published packages, at severity error or warning, and why each finding is right.
# A false alarm is never listed here: it is put right at its rule, with a `good` block on the rule's page.
# Written by `make ecosystem ARGS=--bless`, apart from the reasons. `lines` quotes the first line of each finding.
"""


class Key(NamedTuple):
    """What a finding is recognised by, whatever moves around it."""

    package: str
    path: str
    code: str
    line: str


@dataclass(slots=True)
class Entry:
    package: str
    path: str
    code: str
    why: str
    lines: list[str] = field(default_factory=list)

    def findings(self) -> list[Key]:
        return [Key(self.package, self.path, self.code, line) for line in self.lines]


@dataclass(slots=True)
class Seen:
    """What linting has found, in the order of the reports, and what went wrong."""

    keys: list[Key] = field(default_factory=list)
    places: dict[Key, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    files: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--bless", action="store_true", help="rewrite the list to what is found")
    parser.add_argument("packages", nargs="*", help="these packages only")
    arguments = parser.parse_args()
    versions, entries = read(LIST)
    chosen = {name: versions[name] for name in arguments.packages or versions}
    seen = Seen()
    for name, version in chosen.items():
        lint(name, sources(name, version), seen)
    listed = [entry for entry in entries if entry.package in chosen]
    if arguments.bless:
        others = [entry for entry in entries if entry.package not in chosen]
        entries = blessed(listed, seen.keys, list(versions), others)
        LIST.write_text(written(versions, entries), encoding="utf-8")
        listed = [entry for entry in entries if entry.package in chosen]
    complaints = seen.troubles + compared(listed, seen)
    print("\n".join([*complaints, f"{len(chosen)} packages, {seen.files} files, {len(seen.keys)} findings listed"]))
    return int(bool(complaints))


def read(file: Path) -> tuple[dict[str, str], list[Entry]]:
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    return document["packages"], [Entry(**entry) for entry in document.get("finding", [])]


def lint(name: str, folder: Path, seen: Seen) -> None:
    """Add what is found in `folder`, as the command line tells it."""
    command = [sys.executable, "-m", "amp_doctor", "lint", "--isolated", "--no-cache"]
    # Some packages have a directory `dist`, which is left out by default.
    command += ["--exclude", "__pycache__", "--output-format", "json", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2):
        seen.troubles.append(f"{name}: exit status {done.returncode}\n{done.stderr}")
        return
    report = json.loads(done.stdout)
    seen.files += report["files"]
    seen.troubles += [f"{name}/{error['path']}: {error['message']}" for error in report["errors"]]
    for finding in report["findings"]:
        place = f"{name}/{finding['path']}:{finding['line']}"
        file = folder / finding["path"]
        if finding["code"] == "AMP003" or (finding["code"] == "AMP001" and parses(file)):
            seen.troubles.append(f"{place}: {finding['code']} {finding['message']}")
        elif finding["severity"] in ("error", "warning") and finding["code"] != "AMP001" and not finding["suppressed"]:
            key = Key(name, finding["path"], finding["code"], quoted(file, finding))
            seen.keys.append(key)
            seen.places.setdefault(key, f"{place}: {finding['code']} {finding['message']}")


def parses(file: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return False
    return True


def quoted(file: Path, finding: Mapping[str, Any]) -> str:
    """The line of a finding without the space around and within it; of a notebook, the number of the cell as well."""
    if finding.get("cell") is not None:
        return f"cell {finding['cell']}:{finding['line']}"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return " ".join(lines[finding["line"] - 1].split())


def compared(entries: Iterable[Entry], seen: Seen) -> list[str]:
    listed = Counter(key for entry in entries for key in entry.findings())
    found = Counter(seen.keys)
    unexpected = [
        f"unexpected{_times(count)} {seen.places[key]}\n    {key.line}" for key, count in (found - listed).items()
    ]
    vanished = [
        f"vanished{_times(count)} {key.package}/{key.path}: {key.code}\n    {key.line}"
        for key, count in (listed - found).items()
    ]
    unsaid = [f"no reason {e.package}/{e.path}: {e.code}" for e in entries if e.why in ("", TODO)]
    return unexpected + vanished + unsaid


def _times(count: int) -> str:
    return "" if count == 1 else f" ({count} times)"


def blessed(entries: Iterable[Entry], found: list[Key], order: list[str], others: Iterable[Entry]) -> list[Entry]:
    """Entries for just what was found; those that hold keep their reasons."""
    left = Counter(found)
    kept = list(others)
    for entry in entries:
        lines = []
        for key in entry.findings():
            if left[key]:
                left[key] -= 1
                lines.append(key.line)
        if lines:
            kept.append(Entry(entry.package, entry.path, entry.code, entry.why, lines))
    new: dict[tuple[str, str, str], Entry] = {}
    for key in found:
        if left[key]:
            left[key] -= 1
            entry = new.setdefault(key[:3], Entry(*key[:3], TODO))
            entry.lines.append(key.line)
    return sorted(
        [*kept, *new.values()], key=lambda entry: (order.index(entry.package), entry.path, entry.code, entry.why)
    )


def written(versions: Mapping[str, str], entries: Iterable[Entry]) -> str:
    parts = [HEADER, "[packages]", *(f"{_text(name)} = {_text(version)}" for name, version in versions.items())]
    for entry in entries:
        parts += ["", "[[finding]]"]
        parts += [f"{name} = {_text(getattr(entry, name))}" for name in ("package", "path", "code", "why")]
        if len(entry.lines) == 1:
            parts.append(f"lines = [{_text(entry.lines[0])}]")
        else:
            parts += ["lines = [", *(f"    {_text(line)}," for line in entry.lines), "]"]
    return "\n".join(parts) + "\n"


def _text(value: str) -> str:
    """A string of TOML; its escapes are those of JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


if __name__ == "__main__":
    sys.exit(main())
