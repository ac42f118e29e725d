"""The words of the command line -> values; what is misspelt is refused with a suggestion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from amp_doctor import config
from amp_doctor.errors import SelectorError

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any]")


def selectors(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """`("AMP2,AMP301", "clip-before-unscale")` -> the selectors in them."""
    return _checked(",".join(values), parameter) if values else None


def per_file(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> config.Ignores | None:
    """`("tests/*:AMP2,AMP301",)` -> the globs with their selectors."""
    listed: dict[str, tuple[str, ...]] = {}
    for value in values:
        pattern, _colon, words = value.rpartition(":")
        if not pattern:
            raise click.BadParameter(f"expected GLOB:RULES, not {value!r}", param=parameter)
        listed[pattern] = (*listed.get(pattern, ()), *_checked(words, parameter))
    return tuple(listed.items()) or None


def patterns(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """`("a,b", "c")` -> its parts."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip()) or None


def version(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`"2.4"` -> (2, 4)."""
    try:
        return None if value is None else config.torch_version(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from error


def listed(
    name: str, words: str, callback: Callable[..., Any] = selectors, metavar: str = "RULES"
) -> Callable[[Command], Command]:
    """An option that may be repeated."""
    return click.option(name, multiple=True, callback=callback, metavar=metavar, help=words)


def _checked(text: str, parameter: click.Parameter) -> tuple[str, ...]:
    words = tuple(text.replace(",", " ").split())
    if not words:
        # An unset variable in a script, say; `--select ""` would check nothing and look clean.
        raise click.BadParameter("names no rule", param=parameter)
    try:
        return config.checked_codes(words)
    except SelectorError as error:
        raise click.BadParameter(str(error), param=parameter) from error
