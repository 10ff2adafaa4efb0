"""A thread that serves one source or one sink, and closes it at its end."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

log = logging.getLogger("scheduler.messages")


class Closes(Protocol):
    """A source or a sink."""

    def close(self) -> None: ...


class Serving:
    """``served``: what the thread serves; ``label``: ``source orders``."""

    def __init__(self, served: Closes, label: str) -> None:
        self._served = served
        self._label = label
        self._thread: threading.Thread | None = None

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; False if it has not. Then gives the connection up under it."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._close()
                return False
        return True

    def _close(self) -> None:
        try:
            self._served.close()
        except Exception as error:
            log.info("%s: closing it failed: %s", self._label, error)
