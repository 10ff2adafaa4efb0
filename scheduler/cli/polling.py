"""Poller: polls the database until a condition holds, for commands that wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from scheduler.backoff import Backoff, LogOnce
from scheduler.cli.session import Session, note
from scheduler.errors import StoreUnavailableError

PAUSES = (0.02, 0.5)  # seconds between polls: first, longest
SETTLED = 5.0  # seconds after an outage in which workers renew their leases: they try every 2 s at least
T = TypeVar("T")


class Poller:
    """Polls with growing pauses up to a deadline. ``timeout``: microseconds, None for ever."""

    def __init__(self, session: Session, timeout: int | None) -> None:
        clock = session.database.clock
        self._monotonic = clock.monotonic
        self._deadline = None if timeout is None else clock.monotonic() + timeout / 1_000_000
        self._backoff = Backoff(*PAUSES, 1.5)
        self._never = threading.Event()
        self._seen = False
        self._noted = LogOnce()
        self._away_at = float("-inf")

    @property
    def settled(self) -> bool:
        """Whether the last outage is some time ago: right after one, leases may have run out."""
        return self._monotonic() - self._away_at > SETTLED

    def take(self, look: Callable[[], T]) -> T:
        """Return what ``look`` returns. After the first success, this waits for a database that goes away.

        Raises StoreUnavailableError at the first look, for what waiting does not heal, and when the time is up.
        """
        while True:
            try:
                found = look()
            except StoreUnavailableError as error:
                if not (self._seen and error.heals and self.again()):
                    raise
                self._away_at = self._monotonic()
                if self._noted.is_new(str(error)):
                    note(f"{error}; waiting for it")
            else:
                self._seen = True
                return found

    def again(self) -> bool:
        """Pause before the next poll; False once the time is up."""
        left = float("inf") if self._deadline is None else self._deadline - self._monotonic()
        if left <= 0:
            return False
        self._never.wait(min(self._backoff.next(), left))
        return True
