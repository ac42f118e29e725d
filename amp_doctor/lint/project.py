"""First-party modules of the linted tree: `from utils.train import step` -> the file, read once."""

from __future__ import annotations

from pathlib import Path


class Project:
    """The linted paths, and the modules that imports resolve to inside them."""

    def __init__(self, roots: tuple[Path, ...] = ()) -> None:
        self.roots = roots
