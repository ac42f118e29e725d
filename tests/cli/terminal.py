"""What a program writes on a terminal, for the tests that need a real one."""

from __future__ import annotations

import os


def shown(terminal: int, screen: int) -> str:
    """All that was written to `terminal`, as its other end, `screen`, reads it; both are closed (see pty.openpty)."""
    os.close(terminal)
    written = b""
    try:
        while chunk := os.read(screen, 65536):
            written += chunk
    except OSError:  # how Linux says that the other end was closed
        pass
    os.close(screen)
    return written.decode()
