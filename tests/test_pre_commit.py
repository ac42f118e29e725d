"""The hooks, run by the real pre-commit: a copy of this tree is the hook repository, a scratch one is checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

BAD = """\
import torch
from torch.nn.utils import clip_grad_norm_


def train(model, optimizer, loader):
    scaler = torch.cuda.amp.GradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
CONFIG = """\
repos:
  - repo: {repository}
    rev: {revision}
    hooks:
      - id: amp-doctor
      - id: amp-doctor-fix
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def new_repository(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one bad file, whose configuration points at this tree as it is now, commits or not."""
    hooks = tmp_path_factory.mktemp("hooks")
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (hooks / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, hooks / name)
    new_repository(hooks)
    folder = tmp_path_factory.mktemp("scratch")
    (folder / "train.py").write_text(BAD)
    (folder / "plain.py").write_text("print('no mixed precision here')\n")
    (folder / "notes.md").write_text("GradScaler\n")
    config = CONFIG.format(repository=hooks.as_posix(), revision=git(hooks, "rev-parse", "HEAD"))
    (folder / ".pre-commit-config.yaml").write_text(config)
    new_repository(folder)
    return folder


def run_hook(scratch: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PRE_COMMIT_HOME": str(cache), "PRE_COMMIT_COLOR": "never"}
    command = [sys.executable, "-m", "pre_commit", "run", *arguments]
    return subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both hooks share one installed environment, as they do for a user."""
    return tmp_path_factory.mktemp("pre-commit")


def test_the_manifest_is_valid() -> None:
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_hooks(scratch: Path, cache: Path) -> None:
    # One test, so that parallel workers do not install the environment twice.
    linted = run_hook(scratch, cache, "amp-doctor", "--all-files")
    assert linted.returncode == 1, linted.stdout + linted.stderr
    assert "AMP201" in linted.stdout
    assert "train.py:12:9" in linted.stdout
    assert (scratch / "train.py").read_text() == BAD

    fine = run_hook(scratch, cache, "amp-doctor", "--files", "plain.py")
    assert fine.returncode == 0, fine.stdout + fine.stderr
    unasked = run_hook(scratch, cache, "amp-doctor", "--files", "notes.md")
    assert "no files to check" in unasked.stdout

    fixed = run_hook(scratch, cache, "amp-doctor-fix", "--all-files")
    assert fixed.returncode == 1, fixed.stdout + fixed.stderr
    assert "files were modified by this hook" in fixed.stdout
    text = (scratch / "train.py").read_text()
    assert 'torch.amp.GradScaler("cuda")' in text
    assert "scaler.unscale_(optimizer)" not in text, "the hook applies safe fixes only"
