"""What goes wrong while a call is recorded ends the recording, and never the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.probe.record import Recorder

# So many calls of torch are recorded at most.
_MOST = 50_000


class Careful:
    """What fails inside ends the recording, never the script; entered twice a call, and so no generator."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception):
            self._recorder.give_up(error)
            return True
        if len(self._recorder.tape.entries) > _MOST:
            self._recorder.give_up(RecursionError(f"it makes more than {_MOST} calls of torch"))
        return False
