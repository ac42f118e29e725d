"""`--profile FILE`: the profile as JSON, replaced in one step, so that a killed run leaves the last whole one."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from amp_doctor.diagnosis import recommendation
from amp_doctor.diagnosis.serial import from_values, to_values
from amp_doctor.errors import ProfileError

if TYPE_CHECKING:
    from amp_doctor.diagnosis.profile import Profile
    from amp_doctor.diagnosis.recommendation import Recommendation


class ProfileFile:
    """A file to write profiles to; a ProfileError when that cannot work, before anything has been run."""

    def __init__(self, path: str) -> None:
        self._name = path
        self._path = os.path.realpath(path)
        # A pipe or a device cannot be replaced.
        self._plain = os.path.isfile(self._path) or not os.path.exists(self._path)
        self._try()

    def _try(self) -> None:
        if os.path.isdir(self._path):
            raise ProfileError(f"--profile {self._name}: is a directory")
        where = os.path.dirname(self._path)
        if not os.path.isdir(where):
            raise ProfileError(f"--profile {self._name}: no such directory: {where}")
        if not self._plain:
            return
        beside = self._beside
        try:
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            os.unlink(beside)
        except OSError as error:
            raise ProfileError(f"--profile {self._name}: {error.strerror or error}") from error

    @property
    def _beside(self) -> str:
        return os.path.join(os.path.dirname(self._path), f".{os.path.basename(self._path)}.{os.getpid()}")

    def checkpoint(self, profile: Profile) -> None:
        """Keep what there is so far; a file that takes only one writing waits for the last."""
        if self._plain:
            with suppress(ProfileError):
                self.write(profile)

    def prove(self, profile: Profile, tried: Recommendation) -> None:
        """Put what came of trying a recommendation beside the profile; not in a pipe, which has the profile already."""
        if self._plain:
            self.write(profile, tried)

    def write(self, profile: Profile, tried: Recommendation | None = None) -> None:
        """Write the whole file, or leave the one before."""
        proof = {"recommendation": recommendation.to_values(tried)} if tried is not None else {}
        text = json.dumps({**to_values(profile), **proof}) + "\n"
        target = self._beside if self._plain else self._path
        try:
            with open(target, "w", encoding="utf-8") as stream:
                stream.write(text)
            if self._plain:
                os.replace(target, self._path)
        except OSError as error:
            if self._plain:
                with suppress(OSError):
                    os.unlink(target)
            raise ProfileError(f"--profile {self._name}: {error.strerror or error}") from error


def read(path: str) -> Profile | None:
    """A profile written before; None when there is none, or only a broken one."""
    try:
        with open(path, encoding="utf-8") as stream:
            return from_values(json.load(stream), path)
    except (OSError, ValueError, ProfileError):
        return None
