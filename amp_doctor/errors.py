"""The few errors that end a run, each with its exit code (DESIGN section 6)."""


class AmpDoctorError(Exception):
    """Something the user can put right: usage, configuration, unreadable input."""

    exit_code = 2


class ConfigError(AmpDoctorError):
    """A broken `[tool.amp-doctor]` table; the message names file, key and a suggestion."""


class SelectorError(AmpDoctorError):
    """A code, prefix or name that no rule has."""


class ReadError(AmpDoctorError):
    """A file that cannot be read as Python text; `reason` is one line for the finding AMP004."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class WriteError(AmpDoctorError):
    """A report that found no room, say on a full disk."""


class ProfileError(AmpDoctorError):
    """A profile that cannot be read or merged; the message names the file and what was expected."""


class ScriptError(AmpDoctorError):
    """A script that cannot be run at all: it does not exist, or is not Python."""
