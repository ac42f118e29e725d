"""Profile files -> profiles, and their sum; what cannot be read or added is told with the file it stands in."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from amp_doctor.diagnosis import recommendation
from amp_doctor.diagnosis.serial import from_values
from amp_doctor.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation


def read(name: str) -> Profile:
    """The profile in a file that `probe --profile` or `probe --output-format json` wrote."""
    return from_values(_values(name), name)


def proven(names: Sequence[str]) -> Recommendation | None:
    """The recommendation in a single file, where it was tried: that is not to be had from the profile again."""
    return _tried(names[0]) if len(names) == 1 else None


def _tried(name: str) -> Recommendation | None:
    values = _values(name)
    told = values.get("recommendation") if isinstance(values, dict) else None
    if not isinstance(told, dict) or not told.get("verified"):
        return None
    try:
        return recommendation.from_values(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileError(f"{name}: a broken recommendation: {type(error).__name__}: {error}") from error


def _values(name: str) -> object:
    try:
        text = Path(name).read_text("utf-8")
    except OSError as error:
        raise ProfileError(f"{name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"{name}: not a profile of amp-doctor: not UTF-8 text") from error
    try:
        values: object = json.loads(text)
    except json.JSONDecodeError as error:
        cut = " (cut off?)" if text and error.pos >= len(text.rstrip()) - 1 else ""
        raise ProfileError(f"{name}: not JSON: line {error.lineno}, {error.msg}{cut}") from error
    except RecursionError as error:
        raise ProfileError(f"{name}: not a profile of amp-doctor: nested too deeply") from error
    return values


def merged(names: Sequence[str]) -> Profile:
    """The sum of the profiles in `names`: the ranks of one run, or several runs of one script in one mode."""
    places = [Path(name).resolve() for name in names]
    for index, name in enumerate(names):
        if places[index] in places[:index]:
            raise ProfileError(f"{name}: given twice; its counts would be added to themselves")
    profiles = [read(name) for name in names]
    first = profiles[0]
    for name, profile in zip(names[1:], profiles[1:], strict=True):
        for what in ("script", "mode"):
            mine, other = getattr(first, what), getattr(profile, what)
            if mine != other:
                raise ProfileError(
                    f"{name}: its {what} is {other!r}, that of {names[0]} is {mine!r}; such profiles cannot be merged"
                )
    if len(names) == 1:
        return first
    notes = [f"what was verified of {name} alone is left out: it is not of the sum" for name in names if _tried(name)]
    total = reduce(add, profiles)
    return replace(total, notes=(*total.notes, *notes))
