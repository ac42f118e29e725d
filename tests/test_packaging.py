"""What is built and shipped, and that the README tells the truth about it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from amp_doctor import __version__, catalog
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DEMO = "fixtures/demo/train.py"
PLANTED = {"AMP102", "AMP201", "AMP316", "AMP502"}
PROBED = "fixtures/demo/probe_train.py"
PROBE_PLANTED = {"AMP602", "AMP605"}


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_ships_code_and_pages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("amp_doctor/rules/") for name in names if name.startswith("amp_doctor/rules/")}
    assert {f"{code}-{name}.md" for code, name in catalog.codes().items()} <= shipped
    assert {name.split("/")[0] for name in names} == {"amp_doctor", f"amp_doctor-{__version__}.dist-info"}
    assert {"amp_doctor/py.typed", "amp_doctor/report/page/style.css", "amp_doctor/report/page/start.js"} <= set(names)
    assert {f"amp_doctor/report/page/plotly-cartesian.{end}" for end in ("min.js", "LICENSE")} <= set(names)


def test_the_base_install_has_no_torch(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
    metadata = archive.read(name).decode()
    base = {
        re.split(r"[<>=!~ ;\[]", line)[0]
        for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
        if "extra ==" not in line
    }
    assert base == {"click", "libcst", "pathspec", "rich"}
    assert re.search(r"^Requires-Dist: torch>=2.4; extra == .probe.$", metadata, re.MULTILINE)
    assert "License-Expression: BSD-3-Clause AND MIT" in metadata


def test_an_installed_wheel_finds_its_pages(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from amp_doctor import catalog; print(catalog.folder(), catalog.page('clip-before-unscale').code)"
    done = run("-c", code, cwd=tmp_path)
    assert done.stdout.split() == [str(tmp_path / "amp_doctor" / "rules"), "AMP201"]


def test_the_demo_shows_what_is_planted() -> None:
    done = run("-m", "amp_doctor", "lint", "--isolated", "--no-cache", "--output-format", "json", DEMO)
    assert done.returncode == 1, done.stderr
    assert {finding["code"] for finding in json.loads(done.stdout)["findings"]} == PLANTED


def test_the_probed_demo_shows_what_is_planted() -> None:
    done = run("-m", "amp_doctor", "probe", "--steps", "30", "--output-format", "json", PROBED)
    assert done.returncode == 1, done.stderr
    assert {(one["code"], one["layer"]) for one in json.loads(done.stdout)["findings"]} >= {
        (code, "project") for code in PROBE_PLANTED
    }


@pytest.mark.parametrize(("drawing", "codes"), [("docs/report.svg", PLANTED), ("docs/probe.svg", PROBE_PLANTED)])
def test_the_readme_shows_the_demo(drawing: str, codes: set[str]) -> None:
    drawn = (ROOT / drawing).read_text("utf-8")
    assert all(code in drawn for code in codes), "make readme draws it anew"
    assert drawing in (ROOT / "README.md").read_text("utf-8")


def test_the_demo_has_the_torch_of_the_tests() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["dev"]
    pinned = re.findall(r"^TORCH := (.*)$", makefile, re.MULTILINE)[0].replace("'", "").split()
    assert [one.partition("=")[0].rstrip(">") for one in pinned] == ["torch", "numpy"]
    assert set(pinned) <= set(dev)


def test_the_commands_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    used = {
        (line.split()[1], option)
        for line in re.findall(r"^(?:\$ )?(amp-doctor .*)$", readme, re.MULTILINE)
        # What follows a script that is probed belongs to the script.
        for option in re.findall(r"(?<!\S)--[a-z-]+", line.partition(".py")[0])
    }
    assert used
    for verb in {verb for verb, _ in used}:
        shown = run("-m", "amp_doctor", verb, "--help").stdout
        missing = {option for name, option in used if name == verb and option not in shown}
        assert missing == set(), f"amp-doctor {verb} has no {missing}"


def test_the_configuration_of_the_readme_is_accepted(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    [sample] = re.findall(r"```toml\n(\[tool\.amp-doctor\]\n.*?)```", readme, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(sample)
    command = [sys.executable, "-m", "amp_doctor", "lint", "--show-settings", "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "AMP901" in done.stdout


def test_the_readme_lists_the_families_and_links_that_exist() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    families = {code[:4] for code in catalog.codes()}
    assert families <= set(re.findall(r"AMP\d", readme))
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", readme):
        assert (ROOT / target).exists(), target


def test_the_make_targets_of_the_readme_exist() -> None:
    readme, makefile = ((ROOT / name).read_text("utf-8") for name in ("README.md", "Makefile"))
    for target in re.findall(r"`?make ([a-z]+)`?", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_the_tools_the_tests_need_are_dev_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = {re.split(r"[<>=]", line)[0] for line in project["optional-dependencies"]["dev"]}
    assert {"hatchling", "hypothesis", "jsonschema", "mypy", "pre-commit", "pytest", "pytest-xdist", "ruff"} <= wanted
    assert "playwright" in wanted
