"""Every line that a profile speaks of, told from another place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.diagnosis.profile import Profile, Source


def relocated(profile: Profile, moved: Callable[[Source], Source]) -> Profile:
    """The same profile, each Source in it as `moved` makes it."""

    def of(source: Source | None) -> Source | None:
        return moved(source) if source is not None else None

    first, replay = profile.first_nonfinite, profile.replay
    return replace(
        profile,
        layers=tuple(replace(one, source=of(one.source)) for one in profile.layers),
        operators=tuple(replace(one, source=of(one.source)) for one in profile.operators),
        first_nonfinite=first and replace(first, source=of(first.source)),
        replay=replay and replace(replay, lines=tuple(map(moved, replay.lines))),
        places={name: moved(source) for name, source in profile.places.items()},
    )
