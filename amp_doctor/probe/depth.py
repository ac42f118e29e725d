"""How deep calls of a wrapped function are nested: what is done around the outermost is not done within it again."""

from __future__ import annotations


class Depth:
    """True while a call is under way: `if not depth:` means that the next is the outermost, `with depth:` runs it."""

    def __init__(self) -> None:
        self._calls = 0

    def __bool__(self) -> bool:
        return self._calls > 0

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(self, *_raised: object) -> None:
        self._calls -= 1
