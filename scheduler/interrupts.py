"""Signals to stop: which of them are a word of their own."""

from __future__ import annotations

import time

SAME_SIGNAL = 1.0  # seconds after a signal to stop within which others are that one, sent again


class StopSignals:
    """Counts signals to stop. A manager and a terminal send theirs at the same time, and some send two of them."""

    def __init__(self) -> None:
        self._counted_at: float | None = None

    def counts(self) -> bool:
        """A signal has come: whether it is another one than the last that counted."""
        now = time.monotonic()
        if self._counted_at is not None and now - self._counted_at < SAME_SIGNAL:
            return False
        self._counted_at = now
        return True
