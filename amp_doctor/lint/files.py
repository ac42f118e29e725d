"""Files as the system has them: their bytes, what is wrong with them, how reports call them."""

# Every run passes here, and pathlib would take longer to load than a small file to be read.

from __future__ import annotations

import os

from amp_doctor.errors import ReadError

SUFFIXES = (".py", ".pyi", ".ipynb")


DEFAULT_EXCLUDES = frozenset(
    {
        ".amp_doctor_cache",
        ".bzr",
        ".direnv",
        ".eggs",
        ".git",
        ".git-rewrite",
        ".hg",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".nox",
        ".pants.d",
        ".pyenv",
        ".pytest_cache",
        ".pytype",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        ".vscode",
        "__pycache__",
        "__pypackages__",
        "_build",
        "buck-out",
        "build",
        "dist",
        "node_modules",
        "site-packages",
        "venv",
    }
)


def read_bytes(file: str) -> bytes:
    """What stands in `file`; ReadError when the system will not say."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            # The size is a hint: pipes have none, and the file may be growing.
            size = os.fstat(descriptor).st_size
            parts = [os.read(descriptor, size + 1)]
            while len(parts[-1]) and len(parts[0]) != size:
                parts.append(os.read(descriptor, 1 << 20))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ReadError(display(file), why_unreadable(file, error)) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def why_unreadable(file: str, error: OSError) -> str:
    """One line about an error of the system, in the words of somebody who wanted to read a file."""
    if isinstance(error, FileNotFoundError):
        return "a symbolic link that leads nowhere" if os.path.islink(file) else "no such file; it vanished meanwhile"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return f"cannot be read: {error.strerror or error}"


def display(file: str) -> str:
    """How reports name `file`: relative to the working directory, with forward slashes."""
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive
        relative = os.path.abspath(file)
    return relative.replace(os.sep, "/")
