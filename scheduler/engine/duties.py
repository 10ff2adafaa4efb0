"""What an engine does between its turns, each duty when it is due, in a transaction of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from scheduler.engine.capacity import capacity_of
from scheduler.engine.desk import Desk
from scheduler.engine.stalls import watch_stalls
from scheduler.engine.turn import Turner
from scheduler.engine.upkeep import (
    Lease,
    Schedules,
    Sweeper,
    apply_policies,
    keep_logs,
    pass_on_cancels,
    wake_overlooked,
)
from scheduler.errors import StoreUnavailableError
from scheduler.model.capacity import Capacity
from scheduler.store import looks, waits, workers
from scheduler.store.doorbell import Bell

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.model.registry import Kind

T = TypeVar("T")
log = logging.getLogger("scheduler.engine")

REAP_EVERY = 2.0  # seconds
EARLY = 0.05  # of the time between two: done with what else is due, so that an idle engine wakes once for all
WITH_OTHERS = 0.45  # the same of what is due every second time only
SWEEP_EVERY = 60.0
SWEEP_AGAIN = 0.2  # seconds to the next batch at least, so that retention never keeps work waiting
SWEEP_REST = 4  # times as long as a batch took: behind an old snapshot on PostgreSQL each one walks past all that died
LOOK_EVERY = 1.0
STALLS_EVERY = 1.0
CANCEL_EVERY = 0.25  # seconds between looks for cancels while something runs; a ring looks at once
LOGS_EVERY = 1.0
ALL_WAITS_EVERY = 10.0


class Timers:
    """When what is done again and again is due next, by monotonic time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due: dict[str, float] = {}

    def restart(self, **seconds: float) -> None:
        """Forget everything; these are due after so many seconds, what is not named is due now."""
        mono = self._monotonic()
        self._due = {name: mono + after for name, after in seconds.items()}

    def at(self, name: str, every: float, early: float = 0.0) -> bool:
        """Whether it is due, or will be within this part of ``every``; then it is due again after ``every`` seconds."""
        mono = self._monotonic()
        if mono + early * every < self._due.get(name, 0.0):
            return False
        self._due[name] = mono + every
        return True

    def left(self, name: str) -> float:
        """Seconds until it is due; not more than 0 if it is."""
        return self._due.get(name, 0.0) - self._monotonic()

    def put(self, name: str, seconds: float) -> None:
        """Let it be due after so many seconds."""
        self._due[name] = self._monotonic() + seconds

    def bring_forward(self, name: str, seconds: float = 0.0) -> None:
        """Let it be due after so many seconds at the latest."""
        self._due[name] = min(self._due.get(name, 0.0), self._monotonic() + seconds)


class Duties:
    """All upkeep but for the worker's own lease, which is the engine's.

    A duty that meets something unforeseen keeps no other one and no turn from being done, but for the three that have
    one look: it is told once, and tried again when it is due again. Each method that says so returns True if there may
    be work now where there was none.
    """

    def __init__(self, desk: Desk, turner: Turner, lease: Lease) -> None:
        self.desk = desk
        self.turner = turner
        self.lease = lease
        self.timers = Timers(desk.monotonic)
        self.schedules = Schedules(desk)
        self.sweeper = Sweeper(desk)
        self.known_kinds = 0  # so many are published
        self.known_capacity = Capacity()  # as it is published
        self._overlooked = self._judged = False  # whether there is such work
        self._troubles: dict[str, str] = {}

    def attempt(self, duty: str, work: Callable[[], T]) -> T | None:
        """Do one; None if that failed. Raises StoreUnavailableError."""
        try:
            done = work()
        except StoreUnavailableError:
            raise
        except Exception as error:
            if self._troubles.get(duty) != repr(error):
                log.exception("%s failed, trying again", duty)
            self._troubles[duty] = repr(error)
            return None
        self._troubles.pop(duty, None)
        return done

    def publish(self, connection: sa.Connection) -> None:
        """Tell of kinds that were registered after the start, and of what fills this worker's slots without a claim."""
        kinds = list(self.desk.registry)
        if len(kinds) != self.known_kinds:
            self._publish_kinds(connection, kinds)
        known, processes = self.known_capacity, self.desk.processes
        if self.desk.strays or known.strays or known.childless != (processes is not None and processes.out_of_order):
            self.attempt("telling of this worker's slots", lambda: self._publish_capacity(connection))

    def _publish_kinds(self, connection: sa.Connection, kinds: list[Kind]) -> None:
        with self.desk.database.write(connection) as c:
            workers.publish_kinds(c, self.turner.worker, kinds, self.desk.now())
            self.turner.limits.learn(c)
        self.known_kinds = len(kinds)

    def _publish_capacity(self, connection: sa.Connection) -> None:
        now = capacity_of(self.desk)
        if now == self.known_capacity:
            return
        with self.desk.database.write(connection) as c:
            workers.publish_capacity(c, self.turner.worker, now)
        self.known_capacity = now

    def learn_limits(self, connection: sa.Connection) -> None:
        """Read what other programs say of their kinds."""

        def learn() -> None:
            with self.desk.database.glance(connection) as c:
                self.turner.limits.learn(c)

        self.attempt("reading the kinds' limits", learn)

    def reap(self, connection: sa.Connection, bell: Bell, *, polls: bool) -> bool:
        """Take back what dead workers held. True: there was something.

        ``polls``: the engine is awake for a poll. Else there may be many steps a second, each of them too early.
        """
        early = WITH_OTHERS if polls else 0.0
        if not self.timers.at("reap", min(REAP_EVERY, self.desk.options.lease / 3), early):
            return False
        found = self.attempt("reaping", lambda: self.lease.reap(connection, self.turner.worker, bell.known_dead))
        self.timers.bring_forward("reap", self.lease.next_reap())
        return bool(found)

    def make_way(self, connection: sa.Connection) -> None:
        """Remove what is over."""
        begun = self.desk.monotonic()
        if self.timers.at("sweep", SWEEP_EVERY) and self.attempt("retention", lambda: self.sweeper.sweep(connection)):
            self.timers.put("sweep", max(SWEEP_AGAIN, SWEEP_REST * (self.desk.monotonic() - begun)))

    def look(self, connection: sa.Connection, *, polls: bool) -> bool:
        """See what the next three have to do. False: one ``polls``, and there is nothing to claim."""
        soon = bool(connection.info.pop(waits.OVERLOOKED, False))
        every = self.timers.at("all waits", ALL_WAITS_EVERY, EARLY) or soon
        scheduled = self.timers.at("schedules", self.desk.options.poll, EARLY)  # the doorbell may have been missed
        if not (self.timers.at("looks", LOOK_EVERY, EARLY) or every or scheduled or polls):
            return True

        def ask() -> looks.Seen:
            with self.desk.database.glance(connection) as c:  # no write lock for what mostly finds nothing
                return looks.look(c, self.desk.now(), every=every, polls=polls)

        seen = self.attempt("looking for what is due", ask)
        if seen is None:
            return True
        self._overlooked, self._judged = seen.overlooked, seen.judged
        if scheduled:
            self.schedules.seen(seen.next_fire)
        return seen.claimable or not polls

    def fire(self, connection: sa.Connection, *, rung: bool, claims: bool) -> bool:
        """Make the tasks of schedules that are due. True: there were some."""
        if rung:
            self.schedules.look_again()
        if not (claims and self.schedules.due()):
            return False
        made = self.attempt("firing schedules", lambda: self.schedules.tick(connection))
        if made is None:
            self.schedules.put_off(self.desk.options.poll)
        return bool(made)

    def wake_overlooked(self, connection: sa.Connection) -> bool:
        """Wake who fell between two transactions. True: there were some."""
        due, self._overlooked = self._overlooked, False
        return due and bool(self.attempt("waking", lambda: wake_overlooked(self.desk, connection)))

    def apply_policies(self, connection: sa.Connection) -> bool:
        """Cancel what has lived too long. True: dependants of such may run now."""
        due, self._judged = self._judged, False
        done = self.attempt("applying policies", lambda: apply_policies(self.desk, connection)) if due else None
        if done is None:
            return False
        ready, self._judged = done  # hundreds of thousands may be due at once: the next step goes on
        return ready

    @property
    def behind(self) -> bool:
        """Whether something is left to be done in a step that comes at once, after a turn."""
        return self._judged

    def watch(self, connection: sa.Connection, reported: Callable[[], set[tuple[int, int]]], *, rung: bool) -> bool:
        """Look after the bodies that run here. True: some were taken back, and may run elsewhere."""
        if not self.desk.held:
            return False
        taken = self.timers.at("stalls", STALLS_EVERY) and bool(
            self.attempt(
                "looking for stalls", lambda: watch_stalls(self.desk, connection, self.turner.worker, reported)
            )
        )
        if self.timers.at("cancels", CANCEL_EVERY) or rung:
            self.attempt("looking for cancels", lambda: pass_on_cancels(self.desk, connection, self.turner.worker))
        if self.timers.at("logs", LOGS_EVERY):
            self.attempt("keeping logs", lambda: keep_logs(self.desk, connection))
        return taken
