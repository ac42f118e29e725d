"""A script -> the files of the same project that it imports, and those that these import.

They are looked for by name where Python would look: beside the script, and at the top of the package it is in. Nothing
is imported or run for it.
"""

from __future__ import annotations

import ast
import os
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A project of more files is linted by `amp-doctor lint`.
MOST = 500


def first_party(script: str, roots: Sequence[str]) -> list[str]:
    """Absolute paths, the script's own left out, in the order in which they are met; at most MOST."""
    start = os.path.abspath(script)
    places = tuple(dict.fromkeys([os.path.dirname(start), *roots]))
    met = {start: None}
    waiting = [start]
    while waiting and len(met) <= MOST:
        file = waiting.pop(0)
        for found in chain.from_iterable(_files(name, file, places) for name in _names(file)):
            if found not in met:
                met[found] = None
                waiting.append(found)
    return list(met)[1 : MOST + 1]


def top_of(script: str) -> str:
    """The directory above the package that a script is in, or its own."""
    folder = os.path.dirname(os.path.abspath(script))
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder


def file_of(script: str, as_module: bool) -> str | None:
    """The file or directory of a script; None when there is none, as for a module that is installed elsewhere."""
    places = [script]
    if as_module:
        path = script.replace(".", os.sep)
        places = [f"{path}.py", os.path.join(path, "__main__.py")]
    return next((place for place in places if os.path.exists(place)), None)


def _names(file: str) -> Iterator[tuple[int, str]]:
    """Level and dotted name of all that a file imports; `from a import b` may mean a.b."""
    try:
        with open(file, "rb") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            yield (node.level, name)
            yield from ((node.level, f"{name}.{alias.name}".strip(".")) for alias in node.names)


def _files(name: tuple[int, str], importer: str, places: tuple[str, ...]) -> Iterator[str]:
    """The module or package of that name, and the packages above it, as far as they are there."""
    level, dotted = name
    folder = os.path.dirname(importer)
    for _ in range(level - 1):
        folder = os.path.dirname(folder)
    parts = [part for part in dotted.split(".") if part]
    for place in (folder,) if level else places:
        for length in range(1, len(parts) + 1):
            path = os.path.join(place, *parts[:length])
            yield from (one for one in (f"{path}.py", os.path.join(path, "__init__.py")) if os.path.isfile(one))
