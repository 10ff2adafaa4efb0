"""The worker's lease: renewing it, measuring the way to the server, reclaiming what dead workers held.

The watchdog watches it in a thread of its own, since the loop may wait for a server that never answers. Once the lease
has run out, other workers may take its tasks over, so the running attempts have to end. Before that, a connection that
does not answer is cut, so that the loop can open another one.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from scheduler.backoff import LogOnce
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.maintenance import lost_spans
from scheduler.engine.state import EngineState
from scheduler.model.texts import counted
from scheduler.model.worker_states import DRAINING, LIVE
from scheduler.ports import SECOND, Spawner
from scheduler.store import reaper, workers
from scheduler.store.db.tx import Tx

if TYPE_CHECKING:
    import sqlalchemy as sa


log = logging.getLogger("scheduler.engine")

MAX_SKEW_S = 1.0  # of this machine's clock, before it is logged
MIN_TRIPS_PER_LEASE = 40  # round trips: a cycle takes ten, within a third of the lease
NEAR_TRIP_S = 0.05  # a round trip this long may be due to a busy machine
MAX_MEASURES = 3
MAX_AHEAD = 5 * SECOND  # of this process's clock before the other workers', on SQLite
REAPING_PAUSE_FRACTION = 0.4  # of a lease


def _too_far(trip: float, lease: float) -> bool:
    return trip > NEAR_TRIP_S and lease < MIN_TRIPS_PER_LEASE * trip


class WorkerLease:
    """Renews the worker's lease, and notices when the machine slept or its clock jumped.

    ``lapses``: whether attempts end when the lease runs out (not where they run between the steps).
    """

    def __init__(self, engine_state: EngineState, *, lapses: bool) -> None:
        self.engine_state = engine_state
        self.no_reaping_until = 0.0
        self.anew = False  # this process has joined more than once
        # When the next lease of another worker runs out (microseconds); 0: there is no other, None: not known yet.
        self.next_expiry: int | None = None
        self._lapses = lapses
        self._skew_logged = LogOnce()
        self._seen: tuple[int, float] | None = None
        self._others: tuple[int, Mapping[str, int]] | None = None  # when, and the renewals of the other workers then
        self._renewed = engine_state.monotonic()
        self._dead: list[str] = []  # incarnations known to be dead, not reclaimed yet

    def acquired(self, begun: float) -> None:
        """Note the first lease, of a transaction that began at ``begun`` (monotonic).

        A new worker cannot know whether the clock has just jumped, so it postpones reaping.
        """
        self._extended(begun)
        self.postpone_reaping()

    def postpone_reaping(self) -> None:
        """Reap nothing for a while: the other workers may have been unable to renew.

        Live ones try again every lease/3.
        """
        self.no_reaping_until = max(
            self.no_reaping_until,
            self.engine_state.monotonic() + REAPING_PAUSE_FRACTION * self.engine_state.options.lease,
        )

    def _extended(self, begun: float) -> None:
        if self._lapses:
            self.engine_state.lease_expires_at = begun + self.engine_state.options.lease
        self._renewed = begun
        self._log_skew()

    def _log_skew(self) -> None:
        off = self.engine_state.database.offset / SECOND
        if abs(off) < MAX_SKEW_S:
            self._skew_logged.clear()
        elif not self._skew_logged.is_new():
            return
        elif self.engine_state.database.path is not None:
            log.warning(
                "this process's clock is %.0f s ahead of the other workers': it claims what is due by theirs; set it "
                "right",
                -off,
            )
        else:
            side = "behind" if off > 0 else "ahead of"
            log.warning(
                "this machine's clock is %.1f s %s the server's; times are the server's, but set it right",
                abs(off),
                side,
            )

    def heed_others(self, tx: Tx, worker: int) -> None:
        """On SQLite, where times are each process's own: keep to the clock of the other workers if this one is ahead.

        What another has renewed between two looks was written between them, by any clock that is right.
        """
        database = self.engine_state.database
        if database.path is None or database.clock.steps:
            return
        wall, found = database.clock.now(), workers.renewals(tx, worker)
        before, self._others = self._others, (wall, found)
        if before is None:
            return
        moved = [at for incarnation, at in found.items() if before[1].get(incarnation, at) != at]
        if not moved:
            return
        server_clock = database.server_clock
        if max(moved) >= before[0] - MAX_AHEAD:
            server_clock.offset = 0
        else:
            behind = max(moved) - wall
            server_clock.offset = max(behind, server_clock.offset) if server_clock.offset else behind

    def measure(self, connection: sa.Connection) -> None:
        """Stop claiming while the lease is too short for the round trip: claims would expire before they begin.

        A long measurement is repeated, since the server may only be busy.
        """
        engine_state, lease = self.engine_state, self.engine_state.options.lease
        database = engine_state.database
        for _ in range(MAX_MEASURES - 1):
            if not _too_far(database.round_trip, lease):
                break
            database.calibrate(connection)
        trip, before = database.round_trip, engine_state.lease_needed
        engine_state.lease_needed = float(math.ceil(MIN_TRIPS_PER_LEASE * trip)) if _too_far(trip, lease) else None
        if engine_state.lease_needed is not None and before is None:
            log.error(
                "the database is too far away for this worker's lease: a round trip takes %.2f s, so it claims nothing "
                "with a lease of %g s; set [worker] lease to %g s at least",
                *(trip, lease, engine_state.lease_needed),
            )
        elif engine_state.lease_needed is None and before is not None:
            log.info("a round trip to the database takes %.2f s now: this worker claims again", trip)

    def detect_clock_jump(self) -> bool:
        """Whether wall and monotonic time have drifted apart. If so, reap nothing for one lease.

        The other workers slept or jumped with this one, so their leases only look expired. The known offset of the
        server's clock is wrong until the lease is renewed.
        """
        jumped = False
        lease = self.engine_state.options.lease
        wall, mono = self.engine_state.database.clock.now(), self.engine_state.monotonic()
        if self._seen is not None:
            drift = (wall - self._seen[0]) / SECOND - (mono - self._seen[1])
            if abs(drift) > self.engine_state.options.clock_drift:
                jumped = True
                self.no_reaping_until = mono + lease
                log.warning("the clock jumped by %.1f s; expired leases are left alone for %.0f s", drift, lease)
        self._seen = (wall, mono)
        return jumped

    def renew(self, connection: sa.Connection, worker: int, draining: bool, incarnation: str | None = None) -> bool:
        """Extend the lease. False: it was reclaimed, and this worker's row is gone."""
        state = DRAINING if draining else LIVE
        database, lease = self.engine_state.database, self.engine_state.options.lease
        offset, begun = database.offset, self.engine_state.monotonic()
        with database.write(connection) as tx:
            database.calibrate(tx.connection)
            self.measure(tx.connection)
            self.heed_others(tx, worker)
            database.dialect.forget_plans(tx.connection)
            tx = tx.at(self.engine_state.now())  # the clock was measured anew
            if database.path is None and begun < self.no_reaping_until:  # locks tell of a file's
                workers.shorten_leases(tx, worker)
            held = workers.renew(tx, worker, round(lease * SECOND), state, database.offset, incarnation)
            if held and self.engine_state.moves:
                self.engine_state.moves.write(tx, worker)
        moved = abs(database.offset - offset) > self.engine_state.options.clock_drift * SECOND
        if begun - self._renewed > 2 * self.engine_state.options.renew_every or moved:
            # The database was away or its clock jumped, perhaps for the others, too: they need time to renew.
            self.no_reaping_until = self.engine_state.monotonic() + lease
        if held:
            self._extended(begun)
        return held

    def is_only_worker(self) -> bool:
        """Whether there was no other worker at the last check."""
        return self.next_expiry == 0

    def next_reap(self) -> float:
        """Seconds until another worker's lease may run out; infinity if not known."""
        mono = self.engine_state.monotonic()
        if mono < self.no_reaping_until:
            return self.no_reaping_until - mono
        left = ((self.next_expiry or 0) - self.engine_state.now()) / SECOND
        return left + 0.005 if left >= 0 else float("inf")

    def reap(
        self, connection: sa.Connection, worker: int | None, dead_peers: Callable[[], list[str]]
    ) -> list[reaper.Reclaimed]:
        """Reclaim what dead workers held."""
        self._dead += dead_peers()
        hook, database = self.engine_state.dead_letter_hook, self.engine_state.database
        hook.notify_pending(database)  # dead letters of a commit whose answer was lost
        postponed = self.engine_state.monotonic() < self.no_reaping_until
        if not self._dead:
            with database.glance(connection) as tx:  # no write lock: it mostly finds nothing
                self.next_expiry, found_dead = reaper.find_expired(tx, worker)
            if postponed or not (found_dead or 0 < self.next_expiry < self.engine_state.now()):
                return []
        with database.write(connection) as tx:
            found = reaper.reap(tx, dead_peers=self._dead, spare=worker, lapsed=not postponed, anew=self.anew)
            self.next_expiry = reaper.next_lapse(tx, worker)
            tracing = self.engine_state.tracing
            spans = [] if tracing is None else lost_spans.store(tx, tracing, found)
            hook.pending.update(task for one in found for task in (*one.poisoned, *one.spent))
        self._dead.clear()
        if tracing is not None:
            lost_spans.write(tracing, spans)
        if self.engine_state.metrics is not None:
            self.engine_state.metrics.reclaimed += sum(one.tasks for one in found)
        if self.engine_state.rollups is not None:
            reaper.count_lost(self.engine_state.rollups, self.engine_state.now(), found)
        for one in found:
            log.warning("worker %s died or lost its lease: %s reclaimed", one.label, counted(one.tasks, "task"))
            for task in one.poisoned:
                log.error("task killed its worker again and again, alone: set aside as dead", extra={"task": task})
            for task in one.spent:
                log.error("task lost its last attempt with its worker: set aside as dead", extra={"task": task})
        hook.notify_pending(database)
        return found


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
        mono, options, sign_at = self.engine_state.monotonic(), self.engine_state.options, self._last_sign()
        self._unanswered_for = self._unanswered_for + waited if sign_at == self._seen_sign else 0.0
        self._seen_sign = sign_at
        if mono >= self.engine_state.lease_expires_at:
            self._lapse()
        long = max(UNANSWERED_AFTER[0] * options.lease, UNANSWERED_AFTER[1])
        if mono >= self.engine_state.lease_expires_at - options.cut_before and self._unanswered_for >= long:
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
