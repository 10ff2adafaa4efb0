"""Periodic work between dispatch cycles: each job when it is due, in a transaction of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler.backoff import LogOnce
from scheduler.engine.dispatch.cycle import DispatchCycle
from scheduler.engine.maintenance.hung_handlers import HungHandlers
from scheduler.engine.maintenance.jobs import (
    RetentionJob,
    ScheduleFirer,
    apply_policies,
    keep_logs,
    pass_on_cancels,
    wake_missed,
    write_rollups,
)
from scheduler.engine.maintenance.lease import WorkerLease
from scheduler.engine.maintenance.movement import LOOK_EVERY, Movement
from scheduler.engine.maintenance.stalls import watch_stalls
from scheduler.engine.options import Adjustable
from scheduler.engine.state import EngineState
from scheduler.errors import StoreUnavailableError
from scheduler.model.capacity import Capacity
from scheduler.model.live_settings import EffectiveSettings
from scheduler.ports import FOREVER
from scheduler.store import due_work, workers
from scheduler.store.db.notifier import Notifier
from scheduler.store.durable import waits

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.model.registry import Kind

Result = TypeVar("Result")
log = logging.getLogger("scheduler.engine")

REAP_EVERY = 2.0  # seconds
EARLY_FRACTION = 0.05  # of an interval: due that early, a job is done with the others, so an idle engine wakes once
EARLY_WITH_POLL = 0.45  # the same, for a job that is due at every second poll
SWEEP_EVERY = 60.0
SWEEP_REST_FACTOR = 9  # pause after a batch, in its own durations, while there is work: retention gets a tenth
SLOW_SWEEP_S = 0.25  # behind an old snapshot, PostgreSQL walks past all dead rows
SLOW_SWEEP_REST_FACTOR = 4  # pause of an idle engine after such a batch, in its own durations
DUE_WORK_EVERY = 1.0
STALLS_EVERY = 1.0
HUNG_EVERY = 1.0
CANCEL_EVERY = 0.25  # between checks for cancels while something runs; a notification checks at once
LOGS_EVERY = 1.0
ZONES_EVERY = 60.0
ZONES_REST = 0.1  # between the looks at very many schedules
ALL_WAITS_EVERY = 10.0


class Timers:
    """When each periodic job is due next (monotonic)."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due: dict[str, float] = {}

    def restart(self, **seconds: float) -> None:
        """These are due after so many seconds, all others now."""
        mono = self._monotonic()
        self._due = {name: mono + after for name, after in seconds.items()}

    def due(self, name: str, every: float, early: float = 0.0) -> bool:
        """Whether it is due, or will be within the fraction ``early`` of ``every``; then it is next due after that."""
        mono = self._monotonic()
        if mono + early * every < self._due.get(name, 0.0):
            return False
        self._due[name] = mono + every
        return True

    def remaining(self, name: str) -> float:
        """Seconds until it is due; 0 or less if it is."""
        return self._due.get(name, 0.0) - self._monotonic()

    def either_due(self, one: str, other: str) -> bool:
        """Whether one of the two is due."""
        due = self._due.get
        return min(due(one, 0.0), due(other, 0.0)) <= self._monotonic()

    def set(self, name: str, seconds: float) -> None:
        """Make it due after so many seconds."""
        self._due[name] = self._monotonic() + seconds

    def bring_forward(self, name: str, seconds: float = 0.0) -> None:
        """Make it due after so many seconds at the latest."""
        self._due[name] = min(self._due.get(name, 0.0), self._monotonic() + seconds)


class PeriodicWork:
    """All periodic work except renewing the worker's own lease.

    An unexpected error in one job is logged once and retried at its next interval. It stops neither the others nor
    dispatch, except the three that share one query. Methods that return a bool say whether there may be new work.
    """

    def __init__(self, engine_state: EngineState, dispatch: DispatchCycle, lease: WorkerLease) -> None:
        self.engine_state = engine_state
        self._reap_every = min(REAP_EVERY, engine_state.options.renew_every)
        self.dispatch = dispatch
        self.lease = lease
        self.timers = Timers(engine_state.monotonic)
        self.looking = False  # for what is due and paused: nobody else may go by what is known meanwhile
        self.schedules = ScheduleFirer(engine_state)
        self.retention_job = RetentionJob(engine_state)
        self.hung = HungHandlers(engine_state, dispatch.slots)
        self.movement = Movement(engine_state)
        self.sweeping = False  # whether there is more to remove
        self.idled = 0.0  # seconds that the engine slept since the last batch
        self._swept = 0.0  # seconds that the last batch took
        self.known_kinds = 0  # how many are published
        self.known_capacity = Capacity()  # as published
        self._has_missed = self._has_expired = False  # whether wake_missed(), apply_policies() have work
        self._logged = LogOnce()
        self._settings_read: tuple[str | None, Adjustable, int] | None = None
        self._limits_read: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._resized = False  # and not published yet

    def attempt(self, job: str, work: Callable[[], Result]) -> Result | None:
        """Run one job; None if it failed. Raises StoreUnavailableError."""
        try:
            done = work()
        except StoreUnavailableError:
            raise
        except Exception as error:
            if self._logged.is_new(repr(error), job):
                log.exception("%s failed, trying again", job)
            if self.engine_state.metrics is not None:
                self.engine_state.metrics.count_error(error)
            return None
        self._logged.clear(job)
        return done

    def publish_worker(self, connection: sa.Connection) -> None:
        """Publish kinds that were registered after the start, and this worker's capacity where it has changed."""
        kinds = list(self.engine_state.registry)
        if len(kinds) != self.known_kinds:
            self._publish_kinds(connection, kinds)
        known, processes = self.known_capacity, self.engine_state.processes
        childless = processes is not None and processes.backing_off
        moved = known.childless != childless or known.hung != self.engine_state.hung
        moved |= known.unmoved != self.engine_state.unmoved
        moved |= known.troubles != self.engine_state.traffic.troubles
        moved |= known.lease_needed != self.engine_state.lease_needed or self._resized
        moved |= known.failing != self.engine_state.failing
        if moved or self.engine_state.orphans or known.orphans:
            self.attempt("telling of this worker's slots", lambda: self._publish_capacity(connection))

    def _publish_kinds(self, connection: sa.Connection, kinds: list[Kind]) -> None:
        with self.engine_state.database.write(connection) as tx:
            workers.publish_kinds(tx, self.dispatch.worker, kinds)
            self.dispatch.limits.learn(tx)
        self.known_kinds = len(kinds)

    def _publish_capacity(self, connection: sa.Connection) -> None:
        now, self._resized = self.engine_state.capacity(), False
        if now == self.known_capacity:
            return
        with self.engine_state.database.write(connection) as tx:
            workers.publish_capacity(tx, self.dispatch.worker, now)
        self.known_capacity = now

    def learn_limits(self, connection: sa.Connection) -> None:
        """Read the limits that other programs publish with their kinds."""

        def learn() -> None:
            with self.engine_state.database.glance(connection) as tx:
                self.dispatch.limits.learn(tx)

        self.attempt("reading the kinds' limits", learn)

    def write_rollups(self, connection: sa.Connection) -> None:
        """Write what was counted since the last time; a transaction that neither lease nor work depends on.

        While the database is away it is counted on: whatever else needs the database says so.
        """
        if not self.engine_state.rollups:
            return
        with suppress(StoreUnavailableError):
            self.attempt("writing numbers of attempts", lambda: write_rollups(self.engine_state, connection))

    def reap(self, connection: sa.Connection, notifier: Notifier, *, polls: bool) -> bool:
        """Reclaim what dead workers held. True: there was something.

        ``polls``: the engine is awake for a poll; otherwise there may be many steps a second.
        """
        early = EARLY_WITH_POLL if polls else 0.0
        if not self.timers.due("reap", self._reap_every, early):
            return False
        found = self.attempt("reaping", lambda: self.lease.reap(connection, self.dispatch.worker, notifier.dead_peers))
        self.timers.bring_forward("reap", self.lease.next_reap())
        return bool(found)

    def purge(self, connection: sa.Connection) -> None:
        """Purge a batch each minute; the next one at once while there is more and the engine is idle.

        A busy engine spends a small share of its time on the batches.
        """
        if self.sweeping and self.idled >= self._idle_rest():
            self.timers.bring_forward("sweep")
        if not self.timers.due("sweep", SWEEP_EVERY):
            return
        begun = self.engine_state.monotonic()
        self.sweeping = bool(self.attempt("retention", lambda: self.retention_job.sweep(connection)))
        self._swept, self.idled = self.engine_state.monotonic() - begun, 0.0
        if self.sweeping:
            self.timers.set("sweep", SWEEP_REST_FACTOR * self._swept)

    def until_sweep(self) -> float:
        """Seconds until the next batch if the engine sleeps meanwhile; infinity if there is no more to remove."""
        if not self.sweeping:
            return float("inf")
        return min(self.timers.remaining("sweep"), self._idle_rest() - self.idled)

    def _idle_rest(self) -> float:
        return self._swept * (SLOW_SWEEP_REST_FACTOR if self._swept > SLOW_SWEEP_S else 1)

    def poll(self, connection: sa.Connection, *, polls: bool) -> bool:
        """Ask once what the next three jobs have to do. False: the engine ``polls``, and there is nothing to claim."""
        soon = bool(connection.info.pop(waits.OVERLOOKED, False))
        every = self.timers.due("all waits", ALL_WAITS_EVERY, EARLY_FRACTION) or soon
        scheduled = self.timers.due(
            "schedules", self.engine_state.options.poll, EARLY_FRACTION
        )  # a notification may have been missed
        self.looking = True  # first, for a look that has begun is not due any more
        try:
            return self._look(connection, every=every, scheduled=scheduled, polls=polls)
        finally:
            self.looking = False

    def _look(self, connection: sa.Connection, *, every: bool, scheduled: bool, polls: bool) -> bool:
        if not (self.timers.due("looks", DUE_WORK_EVERY, EARLY_FRACTION) or every or scheduled or polls):
            return True

        def ask() -> due_work.DueWork:
            with self.engine_state.database.glance(connection) as tx:  # no write lock: it mostly finds nothing
                return due_work.poll(tx, every=every, polls=polls)

        seen = self.attempt("looking for what is due", ask)
        if seen is None:
            return True
        self._has_missed, self._has_expired = seen.missed, seen.judged
        self.dispatch.apply_pauses(seen.pauses)
        self.attempt("applying live settings", lambda: self._apply_settings(connection, seen.settings))
        if scheduled:
            self.schedules.note_next(seen.next_fire)
        return seen.claimable or not polls

    def _apply_settings(self, connection: sa.Connection, stored: str | None) -> None:
        """Have the slots and limits that the live settings say, over what is configured."""
        state, worker = self.engine_state, self.dispatch.worker
        if self._settings_read == (stored, state.configured, worker):
            return
        live, configured = EffectiveSettings.of(stored), state.configured
        pools, options = live.pools(configured.pools, worker), state.options
        before = {name: options.pools.get(name, (0, 0)) for name in pools}
        if pools != before or configured.max_concurrent != options.max_concurrent:
            state.options = options._replace(pools=pools, max_concurrent=configured.max_concurrent)
            state.resize(pools)
            self._resized = True
            log.info("slots: %s; before: %s", _pools_text(pools), _pools_text(before))
            self.dispatch.scan_anew()
        if live.limits() != self._limits_read:
            self.learn_limits(connection)
            self._limits_read = live.limits()
            self.dispatch.scan_anew()
        self._settings_read = (stored, configured, worker)

    def fire_schedules(self, connection: sa.Connection, *, woken: bool, claims: bool) -> bool:
        """Make the tasks of due schedules. True: there were some."""
        if claims and self.schedules.next_at < FOREVER and self.timers.due("zones", ZONES_EVERY, EARLY_FRACTION):
            more = self.attempt("looking at the rules of zones", lambda: self.schedules.check_zones(connection))
            if more:
                self.timers.set("zones", ZONES_REST)
        if woken:
            self.schedules.check_again()
        if not (claims and self.schedules.due()):
            return False
        made = self.attempt("firing schedules", lambda: self.schedules.tick(connection))
        if made is None:
            self.schedules.postpone(self.engine_state.options.poll)
        return bool(made)

    def wake_missed(self, connection: sa.Connection) -> bool:
        """Wake suspended tasks that two transactions missed. True: there were some."""
        due, self._has_missed = self._has_missed, False
        return due and bool(self.attempt("waking", lambda: wake_missed(self.engine_state, connection)))

    def apply_policies(self, connection: sa.Connection) -> bool:
        """Cancel tasks that have exceeded max_duration or max_delay. True: dependants of such may run now."""
        due, self._has_expired = self._has_expired, False
        done = self.attempt("applying policies", lambda: apply_policies(self.engine_state, connection)) if due else None
        if done is None:
            return False
        ready, self._has_expired = done  # very many may be due at once: the next step goes on
        return ready

    @property
    def has_backlog(self) -> bool:
        """Whether the next step must follow at once, after a dispatch cycle."""
        return self._has_expired

    def watch_attempts(
        self, connection: sa.Connection, reported: Callable[[], set[tuple[int, int]]], *, woken: bool
    ) -> bool:
        """Check running handlers: hangs, stalls, cancels, logs. True: tasks were reclaimed and may run elsewhere."""
        if not self.engine_state.held:
            if self.engine_state.hung:
                self.hung.clear()
            self.movement.clear()
            return False
        if self.timers.due("hung", HUNG_EVERY):
            self.attempt("looking for handlers that hang", lambda: self.hung.check(connection, self.dispatch.worker))
        if self.engine_state.inline is None and self.timers.due("movement", LOOK_EVERY):
            self.attempt("looking where handlers stand", self.movement.check)
        taken = self.timers.due("stalls", STALLS_EVERY) and bool(
            self.attempt(
                "looking for stalls",
                lambda: watch_stalls(self.engine_state, connection, self.dispatch.worker, reported),
            )
        )
        if self.timers.due("cancels", CANCEL_EVERY) or woken:
            self.attempt(
                "looking for cancels", lambda: pass_on_cancels(self.engine_state, connection, self.dispatch.worker)
            )
        if self.timers.due("logs", LOGS_EVERY):
            self.attempt("keeping logs", lambda: keep_logs(self.engine_state, connection))
        return taken


def _pools_text(pools: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {threads}+{tasks}" for name, (threads, tasks) in pools.items())
