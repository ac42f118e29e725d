"""The floor plan of DESIGN section 2, checked on every import, those inside functions too."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Room -> floor. An import goes down, or stays in its room; the rooms of floor 3 never meet.
FLOORS = {
    "__main__": 6,
    "cli": 5,
    "report": 4,
    "lint": 3,
    "probe": 3,
    "diagnosis": 2,
    "catalog": 1,
    "config": 1,
    "selection": 0,
    "finding": 0,
    "errors": 0,
    "numerics": 0,
}
NEIGHBOURS = {"lint", "probe"}
# Package -> the only places that may import it; rich, click and pathspec each have their one use.
WALLS = {
    "libcst": ("lint/syntax/",),
    "torch": ("probe/",),
    "numba": ("probe/loop",),
    "numpy": ("probe/loop",),
    "rich": ("report/", "cli"),
    "click": ("cli",),
    "pathspec": ("lint/ignores", "lint/discover"),
}
PURE_FLOORS = (0, 2, 4)
# What a pure floor may not touch: files, clock, environment, randomness, other processes.
IMPURE = {
    "os",
    "pathlib",
    "time",
    "datetime",
    "random",
    "secrets",
    "subprocess",
    "shutil",
    "tempfile",
    "socket",
    "glob",
}
IMPURE_CALLS = {"open", "print", "input"}


def imports(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """Line and absolute dotted name of everything imported; `package` is where relative imports start."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*start, *((node.module or "").split(".") if node.module else ())))
            # `from amp_doctor import cli` imports a module, `from amp_doctor.finding import Span` a name in one.
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def broken_rules(file: str, code: str) -> list[str]:
    """What `code`, standing at `file` inside the package, does against the plan."""
    parts = ("amp_doctor", *file.removesuffix(".py").split("/"))
    room = parts[1]
    if room == "__init__":
        return [f"{file}:{line} imports {name}" for line, name in imports(ast.parse(code), parts[:-1])]
    wrong = []
    tree = ast.parse(code)
    for line, name in imports(tree, parts[:-1]):
        top, _, rest = name.partition(".")
        # The package itself, as `import amp_doctor` names it, holds nothing but its version.
        if top == "amp_doctor" and rest and not rest.startswith("__version__"):
            other = rest.split(".")[0]
            sideways = {room, other} == NEIGHBOURS
            if FLOORS[other] > FLOORS[room] or sideways:
                wrong.append(f"{file}:{line} goes from {room} up or sideways to {name}")
        elif top in WALLS and not file.startswith(WALLS[top]):
            wrong.append(f"{file}:{line} imports {top} outside {' '.join(WALLS[top])}")
        elif top not in WALLS and top not in sys.stdlib_module_names and top != "amp_doctor":
            wrong.append(f"{file}:{line} imports {top}, which is no dependency")
        elif FLOORS[room] in PURE_FLOORS and top in IMPURE:
            wrong.append(f"{file}:{line} imports {top} on a pure floor")
    if FLOORS[room] in PURE_FLOORS:
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        wrong += [f"{file}:{n.lineno} calls {n.func.id}()" for n in calls if n.func.id in IMPURE_CALLS]  # type: ignore[attr-defined]
    return wrong


def test_every_room_has_a_floor() -> None:
    rooms = {file.split("/")[0].removesuffix(".py") for file in modules()}
    assert rooms - {"__init__"} <= FLOORS.keys(), "a new module at the top of the package needs a floor here"


def modules() -> list[str]:
    package = ROOT / "amp_doctor"
    return sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))


@pytest.mark.parametrize("file", modules())
def test_imports_go_down(file: str) -> None:
    assert broken_rules(file, (ROOT / "amp_doctor" / file).read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("__init__.py", "import json"),
        ("finding.py", "from amp_doctor.catalog import page"),
        ("finding.py", "import pathlib"),
        ("config.py", "from amp_doctor.lint import run"),
        ("catalog.py", "from amp_doctor import report"),
        ("report/to_text.py", "def f():\n    import amp_doctor.cli"),
        ("report/to_text.py", "print(1)"),
        ("report/to_text.py", "def f():\n    from os import environ"),
        ("lint/run.py", "from amp_doctor.probe.session import Session"),
        ("lint/run.py", "from ..probe import session"),
        ("lint/run.py", "def f():\n    import libcst as cst"),
        ("lint/syntax/names.py", "import torch"),
        ("lint/checks/steps.py", "if TYPE_CHECKING:\n    from libcst import CSTNode"),
        ("cli.py", "import requests"),
    ],
)
def test_each_wall_can_be_run_into(file: str, code: str) -> None:
    assert broken_rules(file, code) != []


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("lint/run.py", "from amp_doctor import __version__\nfrom .source import Source\nimport os"),
        ("probe/launch.py", "import amp_doctor\nimport torch"),
        ("lint/syntax/names.py", "import libcst as cst"),
        ("report/to_text.py", "from amp_doctor.lint.result import LintReport\nimport rich"),
    ],
)
def test_doors_are_open(file: str, code: str) -> None:
    assert broken_rules(file, code) == []


AMP = """\
import torch

model = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(torch.ones(2, 2)).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""


def loaded(arguments: list[str], before: str = "") -> set[str]:
    """Top-level packages that a run of the command line has loaded at its end."""
    code = (
        f"{before}\nimport sys\nfrom amp_doctor.cli import main\nsys.argv[1:] = {arguments!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("LOADED")[2].split())


def test_linting_amp_loads_libcst_and_never_torch(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(AMP)
    # Without worker processes, whose modules could not be seen from here.
    alone = "from amp_doctor.lint import workers\nworkers.can_fork = lambda: False"
    found = loaded(["lint", "--no-cache", "--isolated", str(file)], alone)
    assert "libcst" in found  # the twin: this very measurement can see a package that is loaded
    assert "torch" not in found


def test_linting_without_amp_loads_neither(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"plain{number}.py").write_text("import torch\n\nprint(torch.ones(2))\n")
    found = loaded(["lint", "--no-cache", "--isolated", str(tmp_path)])
    assert not found & {"libcst", "torch"}
    assert "libcst" in loaded(["lint", "--no-cache", "--isolated", str(tmp_path)], before="import libcst")


def test_importing_the_package_imports_nothing() -> None:
    code = "import sys; old = set(sys.modules); import amp_doctor; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["amp_doctor"]
