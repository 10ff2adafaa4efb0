"""Watches the lease in a thread of its own, since the loop may wait for a server that never answers.

Once the lease has run out, other workers may take its tasks over, so the running attempts have to end. Before that,
a connection that does not answer is cut, so that the loop can open another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.state import EngineState
from scheduler.ports import Spawner

log = logging.getLogger("scheduler.engine")

CHECKS_PER_LEASE = 12  # in the time of one lease
MAX_PAUSE_S = 2.0  # between two checks, at most
# A connection without an answer is cut after this fraction of a lease, at least after so many seconds.
UNANSWERED_AFTER = (0.4, 1.0)


class LeaseWatchdog:
    """See the module. ``last_sign``: the loop's last sign of life (monotonic); ``loop_thread``: its ident."""

    def __init__(
        self, engine_state: EngineState, last_sign: Callable[[], float], loop_thread: Callable[[], int | None]
    ) -> None:
        self.engine_state = engine_state
        self._last_sign = last_sign
        self._loop_thread = loop_thread
        self._every = min(MAX_PAUSE_S, engine_state.options.lease / CHECKS_PER_LEASE)
        self._seen_sign = 0.0
        self._unanswered_for = 0.0  # seconds since that sign in which this process ran
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
            self.check(pause)
            pause = self.pause()

    def pause(self) -> float:
        """Seconds until the next check, which must not be after the end of the lease: others may begin then."""
        left = self.engine_state.lease_expires_at - self.engine_state.monotonic()
        return min(self._every, left) if left > 0 else self._every

    def check(self, waited: float) -> None:
        """End the attempts if the lease has run out; cut the loop's connection in time before that.

        ``waited``: seconds since the last check.
        """
        mono, lease, sign_at = self.engine_state.monotonic(), self.engine_state.options.lease, self._last_sign()
        self._unanswered_for = self._unanswered_for + waited if sign_at == self._seen_sign else 0.0
        self._seen_sign = sign_at
        if mono >= self.engine_state.lease_expires_at:
            self._lapse()
        if mono >= self.engine_state.lease_expires_at - lease / 3 and self._unanswered_for >= max(
            UNANSWERED_AFTER[0] * lease, UNANSWERED_AFTER[1]
        ):
            thread = self._loop_thread()
            self._unanswered_for = 0.0
            waits_for = None if thread is None else self.engine_state.database.waits_for(thread, self._every)
            if thread is not None and self.engine_state.database.cut(thread):
                reason = "" if waits_for is None else f" ({waits_for})"
                log.warning("the database has not answered for %.1f s%s: its connection is cut", mono - sign_at, reason)

    def _lapse(self) -> None:
        with self._mutex:
            if self.engine_state.monotonic() < self.engine_state.lease_expires_at:
                return  # renewed at the last moment
            running = [attempt for attempt in list(self.engine_state.held.values()) if not attempt.lost]
            for attempt in running:
                attempt.lost = True
                attempt.loss_delivered = bool(attempt.slot_key[1])  # a thread notices when it asks
                if attempt.slot is not None:
                    attempt.slot.interrupt(attempt)
            self._lapsed += running
        self.engine_state.reject_requests()
        if running:
            log.warning("the lease has run out and cannot be renewed: %d tasks have to end", len(running))

    def renewed(self) -> None:
        """The lease was extended after all, so no task was reclaimed: attempts that were not interrupted yet go on."""
        if self._lapsed:
            with self._mutex:
                for attempt in self._lapsed:
                    attempt.lost = attempt.loss_delivered
                self._lapsed.clear()

    def reclaimed(self) -> None:
        """The lease was lost for good."""
        with self._mutex:
            self._lapsed.clear()
