"""Watches over the lease from a thread of its own, since the loop may be waiting for a server that never answers.

A worker that cannot reach its database claims nothing. Once its lease has run out others may take its tasks over, so
what runs here is told to end; and a connection that does not answer is cut, so that the loop can make another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from scheduler.engine.attempt import Attempt
from scheduler.engine.desk import Desk
from scheduler.ports import Spawner

log = logging.getLogger("scheduler.engine")

LOOKS = 12  # in the time of one lease
LONGEST = 2.0  # seconds between two looks at most
STUCK = (0.4, 1.0)  # an answer is waited for in vain that takes longer: than this part of a lease, than these seconds


class Guard:
    """See the module. ``last_sign``: when the loop last gave one of life (monotonic); ``loop_thread``: its ident."""

    def __init__(self, desk: Desk, last_sign: Callable[[], float], loop_thread: Callable[[], int | None]) -> None:
        self.desk = desk
        self._last_sign = last_sign
        self._loop_thread = loop_thread
        self._every = min(LONGEST, desk.options.lease / LOOKS)
        self._seen = 0.0
        self._in_vain = 0.0  # seconds of ours since that sign: those in which we stood still are none of its
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self._lapsed: list[Attempt] = []

    def start(self, spawn: Spawner) -> None:
        spawn(self._run, "schedd-guard")

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        pause = self.pause()
        while not self._over.wait(pause):
            self.look(pause)
            pause = self.pause()

    def pause(self) -> float:
        """Seconds until the next look: not after the lease has run out, for then others may begin."""
        left = self.desk.lapses_at - self.desk.monotonic()
        return min(self._every, left) if left > 0 else self._every

    def look(self, waited: float) -> None:
        """Tell what runs if the lease has run out; cut the loop's connection in time before that.

        ``waited``: seconds since the last look.
        """
        mono, lease, sign_at = self.desk.monotonic(), self.desk.options.lease, self._last_sign()
        self._in_vain = self._in_vain + waited if sign_at == self._seen else 0.0
        self._seen = sign_at
        if mono >= self.desk.lapses_at:
            self._lapse()
        if mono >= self.desk.lapses_at - lease / 3 and self._in_vain >= max(STUCK[0] * lease, STUCK[1]):
            thread = self._loop_thread()
            self._in_vain = 0.0
            if thread is not None and self.desk.database.cut(thread):
                log.warning("the database has not answered for %.1f s: its connection is cut", mono - sign_at)

    def _lapse(self) -> None:
        with self._mutex:
            if self.desk.monotonic() < self.desk.lapses_at:
                return  # renewed at the last moment
            told = [attempt for attempt in list(self.desk.held.values()) if not attempt.lost]
            for attempt in told:
                attempt.lost = True
                attempt.told_lost = bool(attempt.sort[1])  # a thread notices when it asks
                if attempt.slot is not None:
                    attempt.slot.interrupt(attempt)
            self._lapsed += told
        self.desk.refuse_requests()
        if told:
            log.warning("the lease has run out and cannot be renewed: %d tasks are told to end", len(told))

    def renewed(self) -> None:
        """The lease was extended after all, so nobody had reclaimed anything: who was not told yet goes on."""
        if self._lapsed:
            with self._mutex:
                for attempt in self._lapsed:
                    attempt.lost = attempt.told_lost
                self._lapsed.clear()

    def reclaimed(self) -> None:
        """The lease was lost for good."""
        with self._mutex:
            self._lapsed.clear()
