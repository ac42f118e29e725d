"""Tensors inside arguments and results: in tuples, lists and dicts, however deep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Each of them, in the order in which they stand."""
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (tuple, list)):
            yield from tensors(one)
        elif isinstance(one, dict):
            yield from tensors(one.values())


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same with everything inside it, that is no tuple, list or dict, as `change` makes it."""
    if isinstance(value, (tuple, list)):
        inside = [mapped(one, change) for one in value]
        return inside if isinstance(value, list) else tuple(inside)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    return change(value)
