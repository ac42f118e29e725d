"""What a collector raises ends that collector, and never the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_doctor.probe.session import Session


class Guard:
    """Cheaper than a generator's context manager: it is entered for every tensor."""

    __slots__ = ("_collector", "_session")

    def __init__(self, session: Session, collector: str) -> None:
        self._session = session
        self._collector = collector

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        # Stop and KeyboardInterrupt are no Exceptions and go on.
        if isinstance(error, Exception):
            self._session.switch_off(self._collector, error)
            return True
        return False
