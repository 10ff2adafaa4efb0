"""What an engine does beside its turns: renew its lease, reap the dead, fire schedules.

Each tick does its work in a transaction of its own and returns when it wants to be called again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.engine.desk import Desk
from scheduler.ports import FOREVER, SECOND
from scheduler.store import control, policies, retention, schedules, waits, workers
from scheduler.store.attempts import write_values

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

SKEW = 1.0  # seconds that this machine's clock may be off before it is told
PATIENCE = 0.4  # of a lease
JUDGING = 0.25  # seconds after which policies let the lease be renewed and a turn be taken, before they go on
ASIDE = 60.0  # seconds until schedules that could not be fired are looked at again


class Lease:
    """Renews the worker's lease, and notices when the machine slept or its clock jumped.

    ``lapses``: whether what runs is told once the lease has run out (not where attempts run between the steps).
    """

    def __init__(self, desk: Desk, *, lapses: bool) -> None:
        self.desk = desk
        self.no_reaping_until = 0.0
        # When the next of the other workers' leases runs out (microseconds); 0: there are none, None: not known yet.
        self.next_lapse: int | None = None
        self._lapses = lapses
        self._skew_told = False
        self._seen: tuple[int, float] | None = None
        self._renewed = desk.monotonic()
        self._dead: list[str] = []  # known to be dead, not yet recorded

    def joined(self, begun: float) -> None:
        """The worker has got its first lease, by a transaction that began then (monotonic).

        A worker that has just begun does not know whether the clock jumped a moment ago.
        """
        self._extended(begun)
        self.be_patient()

    def be_patient(self) -> None:
        """Something may have kept the others from renewing. The living do so, or try again, every lease/3; only who has
        not in this time either is dead."""
        self.no_reaping_until = max(self.no_reaping_until, self.desk.monotonic() + PATIENCE * self.desk.options.lease)

    def _extended(self, begun: float) -> None:
        if self._lapses:
            self.desk.lapses_at = begun + self.desk.options.lease
        self._renewed = begun
        self._tell_skew()

    def _tell_skew(self) -> None:
        off = self.desk.database.offset / SECOND
        if abs(off) < SKEW:
            self._skew_told = False
        elif not self._skew_told:
            self._skew_told = True
            side = "behind" if off > 0 else "ahead of"
            log.warning(
                "this machine's clock is %.1f s %s the server's; times are the server's, but set it right",
                abs(off),
                side,
            )

    def watch_clocks(self) -> bool:
        """If wall and monotonic time disagree since the last look by more than lease/3, reap nobody for one lease.

        The others' leases only look expired then: their owners slept or jumped with us. Returns whether it is so: then
        what is known of the server's clock is wrong until the lease is renewed.
        """
        jumped = False
        lease = self.desk.options.lease
        wall, mono = self.desk.database.clock.now(), self.desk.monotonic()
        if self._seen is not None:
            drift = (wall - self._seen[0]) / SECOND - (mono - self._seen[1])
            if abs(drift) > lease / 3:
                jumped = True
                self.no_reaping_until = mono + lease
                log.warning("the clock jumped by %.1f s; reaping nobody for %.0f s", drift, lease)
        self._seen = (wall, mono)
        return jumped

    def renew(self, connection: sa.Connection, worker: int, draining: bool) -> bool:
        """Extend the lease. False: it was reclaimed, and this worker is no more."""
        state = workers.DRAINING if draining else workers.LIVE
        database, lease = self.desk.database, self.desk.options.lease
        offset, begun = database.offset, self.desk.monotonic()
        with database.write(connection) as c:
            database.calibrate(c)
            database.dialect.forget_plans(c)
            held = workers.renew(c, worker, self.desk.now(), round(lease * SECOND), state, database.offset)
        moved = abs(database.offset - offset) > lease / 3 * SECOND
        if begun - self._renewed > lease * 2 / 3 or moved:
            # The database was away for us, so perhaps for the others, or its clock jumped: they too need time to renew.
            self.no_reaping_until = self.desk.monotonic() + lease
        if held:
            self._extended(begun)
        return held

    def alone(self) -> bool:
        """Whether there was no other worker when last looked."""
        return self.next_lapse == 0

    def next_reap(self) -> float:
        """Seconds after which another worker's lease may have run out; infinity if that is not known."""
        mono = self.desk.monotonic()
        if mono < self.no_reaping_until:
            return self.no_reaping_until - mono
        left = ((self.next_lapse or 0) - self.desk.now()) / SECOND
        return left + 0.005 if left >= 0 else float("inf")

    def reap(
        self, connection: sa.Connection, worker: int | None, known_dead: Callable[[], list[str]]
    ) -> list[workers.Reclaimed]:
        """Take back what dead workers held."""
        self._dead += known_dead()
        alerts, database = self.desk.alerts, self.desk.database
        alerts.tell_owed(database)  # by a commit that was not answered
        patient = self.desk.monotonic() < self.no_reaping_until
        if not self._dead:
            with database.glance(connection) as c:  # no write lock for a look that mostly finds nothing
                self.next_lapse, found_dead = workers.look_for_dead(c, worker)
            if patient or not (found_dead or 0 < self.next_lapse < self.desk.now()):
                return []
        with database.write(connection) as c:
            found = workers.reap(
                c, database.dialect, self.desk.now(), known_dead=self._dead, spare=worker, lapsed=not patient
            )
            self.next_lapse = workers.next_lapse(c, worker)
            alerts.owed.update(task for one in found for task in one.poisoned)
        self._dead.clear()
        for one in found:
            log.warning("worker %s died or lost its lease: %d tasks reclaimed", one.label, one.tasks)
            for task in one.poisoned:
                log.error("task killed its worker again and again, alone: set aside as dead", extra={"task": task})
        alerts.tell_owed(database)
        return found


class Schedules:
    """Turns due slots into tasks."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.next_at = 0  # microseconds
        self._aside: dict[str, str] = {}  # schedules that cannot be fired, and why
        self._aside_until = 0.0
        self._told: dict[str, str] = {}

    def due(self) -> bool:
        return self.next_at <= self.desk.now()

    def look_again(self) -> None:
        """A schedule may have been registered, changed, or its fixed-delay run may have ended."""
        self.next_at = 0

    def seen(self, next_at: int) -> None:
        """Somebody has just looked; it says nothing while some are set aside."""
        self.next_at = 0 if self._aside else next_at

    def tick(self, connection: sa.Connection) -> int:
        """Fire what is due. Returns how many tasks were made."""
        desk = self.desk
        dialect, grace = desk.database.dialect, round(desk.options.misfire_grace * SECOND)
        if desk.monotonic() >= self._aside_until:
            self._aside.clear()
            self._aside_until = desk.monotonic() + ASIDE
        if not self._aside:
            with desk.database.glance(connection) as c:  # no write lock for a look that mostly finds nothing
                self.next_at = schedules.next_look(c)
            if not self.due():
                return 0
        with desk.database.write(connection) as c:
            fired = schedules.tick(c, dialect, desk.now(), grace, self._aside)
            troubles = {f.name: f.trouble for f in fired if f.trouble is not None}
            self.next_at = schedules.next_due(c, dialect, {*self._aside, *troubles})
        self._aside |= troubles
        for name, trouble in troubles.items():
            if self._told.get(name) != trouble:
                log.error("schedule %s cannot be fired, it is left alone: %s", name, trouble)
        self._told |= troubles
        made = sum(len(f.ids) for f in fired)
        if made:
            log.debug("%d schedules made %d tasks", len(fired), made)
        return made

    def put_off(self, seconds: float) -> None:
        """Nothing is due for so long: a tick has just failed."""
        self.next_at = max(self.next_at, self.desk.now() + round(seconds * SECOND))

    def seconds_until_due(self) -> float:
        if self.next_at >= FOREVER:
            return float("inf")
        return max(0.0, (self.next_at - self.desk.now()) / SECOND)


def apply_policies(desk: Desk, connection: sa.Connection) -> tuple[bool, bool]:
    """Cancel what has lived or waited too long by its own policies, as much as a moment allows.

    Returns whether some dependants may run now, and whether there is more to be judged.
    What is left may be claimed meanwhile. It does not begin beyond its max_duration, but it may beyond its max_delay.
    """
    until = desk.monotonic() + JUDGING
    ready, more = 0, True
    while more:
        with desk.database.write(connection) as c:
            judged = policies.apply(c, desk.database.dialect, desk.now())
        for task, reason in (judged.cancelled | judged.requested).items():
            log.info("task cancelled", extra={"task": task, "reason": reason})
        ready += judged.ready
        more = judged.more
        if desk.monotonic() >= until:
            break
    return ready > 0, more


def pass_on_cancels(desk: Desk, connection: sa.Connection, worker: int) -> None:
    """Let running bodies know that they were asked to end."""
    with desk.database.glance(connection) as c:  # no write lock for a look that mostly finds nothing
        asked = control.cancel_requests(c, worker, list(desk.held))
    for key in asked:
        attempt = desk.held.get(key)
        if attempt is not None and not attempt.cancelled:
            attempt.cancelled = True
            if attempt.slot is not None:
                attempt.slot.interrupt(attempt)


def wake_overlooked(desk: Desk, connection: sa.Connection) -> bool:
    """Wake suspended tasks that fell between somebody's transactions, see ``store/waits.py``. True: there were some."""
    with desk.database.write(connection) as c:
        return waits.wake_overlooked(c, desk.database.dialect, desk.now()) > 0


def keep_logs(desk: Desk, connection: sa.Connection) -> None:
    """Store what running bodies have written so far, for those who follow it."""
    rows, written = [], []
    for (task_id, claim), attempt in list(desk.held.items()):
        tail = attempt.tail
        if tail is not None and tail.added != attempt.tail_written:
            written.append((attempt, tail.added))
            rows.append((task_id, f"log:{claim}", tail.text()))
    if rows:
        with desk.database.write(connection) as c:
            write_values(c, desk.database.dialect, rows)
    for attempt, added in written:
        attempt.tail_written = added


class Sweeper:
    """Removes what is over, batch by batch, so that no work is kept waiting."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._review: int | None = 0  # from this id on: successes put off by a longer retention than this engine's

    def sweep(self, connection: sa.Connection) -> bool:
        """Remove one batch. True: there is more."""
        desk, kept = self.desk, self.desk.options.retention
        now, dialect = desk.now(), desk.database.dialect
        with desk.database.write(connection) as c:
            removed = retention.sweep(c, dialect, now, kept)
            after = self._review
            if after == 0 and not retention.keeps_some(c, now):
                after = None
            if after is not None and not removed.more:
                reviewed, after = retention.review(c, dialect, now, kept, after)
                removed = removed.plus(reviewed)
        self._review = after
        if removed.tasks or removed.results:
            log.debug("retention removed %d tasks, and the results of %d", removed.tasks, removed.results)
        return removed.more or after is not None
