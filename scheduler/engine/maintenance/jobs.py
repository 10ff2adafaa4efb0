"""Periodic jobs beside dispatch: schedules, policies, cancel requests, logs, retention."""

from __future__ import annotations

import logging
import os
import zoneinfo
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from scheduler.backoff import LogOnce
from scheduler.engine.maintenance.stalls import take_away
from scheduler.engine.state import EngineState
from scheduler.model.outcome import AttemptEnd
from scheduler.model.texts import rfc3339
from scheduler.model.zoned import forget_zones, zones_read
from scheduler.ports import FOREVER, SECOND
from scheduler.store import rollups, schedules
from scheduler.store.admin import retention
from scheduler.store.durable import waits
from scheduler.store.schedule_times import move, moved
from scheduler.store.tasks import control, deadlines
from scheduler.store.tasks.attempts import write_values

if TYPE_CHECKING:
    import sqlalchemy as sa


log = logging.getLogger("scheduler.engine")

FORCED_TEXT = "cancelled by force, while its handler still ran"
POLICIES_BUDGET_S = 0.25  # for policies in one step: the lease must be renewed, and tasks dispatched
SWEEP_TARGET_S = 0.05  # for one batch of retention
SWEEP_BATCH_BOUNDS = (250, 2_000)  # tasks: least, most
SET_ASIDE_S = 60.0  # until a schedule that could not be fired is tried again


class ScheduleFirer:
    """Makes the tasks of due schedules."""

    def __init__(self, engine_state: EngineState) -> None:
        self.engine_state = engine_state
        self.next_at = 0  # microseconds
        self._aside: dict[str, str] = {}  # schedules that cannot be fired, and why
        self._aside_until = 0.0
        self._logged = LogOnce()
        self._zones = ZoneFiles()
        self._checked = ""  # the last schedule whose zone was looked at

    def due(self) -> bool:
        return self.next_at <= self.engine_state.now()

    def check_again(self) -> None:
        """Check at the next tick: a schedule may have been registered or changed, or a fixed-delay run has ended."""
        self.next_at = 0

    def note_next(self, next_at: int) -> None:
        """Note what another query found. It does not count while some schedules are set aside."""
        self.next_at = 0 if self._aside else next_at

    def tick(self, connection: sa.Connection) -> int:
        """Fire what is due. Returns how many tasks were made."""
        engine_state = self.engine_state
        grace = round(engine_state.options.misfire_grace * SECOND)
        if engine_state.monotonic() >= self._aside_until:
            self._aside.clear()
            self._aside_until = engine_state.monotonic() + SET_ASIDE_S
        if not self._aside:
            with engine_state.database.glance(connection) as tx:  # no write lock: it mostly finds nothing
                self.next_at = schedules.next_look(tx)
            if not self.due():
                return 0
        with engine_state.database.write(connection) as tx:
            fired = schedules.tick(tx, grace, self._aside, engine_state.registry.get)
            troubles = {f.name: f.trouble for f in fired if f.trouble is not None}
            self.next_at = schedules.next_due(tx, {*self._aside, *troubles})
        self._aside |= troubles
        for name, trouble in troubles.items():
            if self._logged.is_new(trouble, name):
                log.error("schedule %s cannot be fired, it is left alone: %s", name, trouble)
        made = sum(len(f.ids) for f in fired)
        if made:
            log.debug("%d schedules made %d tasks", len(fired), made)
        return made

    def check_zones(self, connection: sa.Connection) -> bool:
        """Find next fire times again that are none by the present rules of their zones, of some hundred schedules.

        Returns whether there are more to look at.
        """
        engine_state = self.engine_state
        if not self._checked:
            self._zones.refresh()
        with engine_state.database.glance(connection) as tx:  # no write lock: it mostly finds nothing
            found, after = moved(tx, self._checked)
        if found:
            with engine_state.database.write(connection) as tx:
                names = set(move(tx, found))
            for one in found:
                if one.name in names:
                    before, now = (rfc3339(at, exact=False) for at in (one.stored, one.next_at))
                    log.warning(
                        "schedule %s: its zone has other rules now, so it fires at %s, not %s", one.name, now, before
                    )
            self.check_again()
        self._checked = after or ""
        return after is not None

    def postpone(self, seconds: float) -> None:
        """Fire nothing for so long: a tick has just failed."""
        self.next_at = max(self.next_at, self.engine_state.now() + round(seconds * SECOND))

    def seconds_until_due(self) -> float:
        if self.next_at >= FOREVER:
            return float("inf")
        return max(0.0, (self.next_at - self.engine_state.now()) / SECOND)


def apply_policies(engine_state: EngineState, connection: sa.Connection) -> tuple[bool, bool]:
    """Cancel tasks that have exceeded max_duration or max_delay, within a time budget.

    Returns whether dependants may run now, and whether more tasks are due. Those may be claimed meanwhile: they do not
    begin beyond max_duration, but may beyond max_delay.
    """
    until = engine_state.monotonic() + POLICIES_BUDGET_S
    ready, more = 0, True
    while more:
        with engine_state.database.write(connection) as tx:
            judged = deadlines.apply(tx)
        for task, reason in (judged.cancelled | judged.requested).items():
            log.info("task cancelled", extra={"task": task, "reason": reason})
        ready += judged.ready
        more = judged.more
        if engine_state.monotonic() >= until:
            break
    return ready > 0, more


def pass_on_cancels(engine_state: EngineState, connection: sa.Connection, worker: int) -> None:
    """Pass requested cancels on to running attempts; take the claims of those that are cancelled by force."""
    with engine_state.database.glance(connection) as tx:  # no write lock: it mostly finds nothing
        asked = control.cancel_requests(tx, worker, list(engine_state.held))
        forced = control.forced(tx, asked) if asked else set()
    for key in asked:
        attempt = engine_state.held.get(key)
        if attempt is not None and not attempt.cancelled:
            attempt.cancelled = True
            if attempt.slot is not None:
                attempt.slot.interrupt(attempt)
    taken = [a for key in forced if (a := engine_state.held.get(key)) is not None and not (a.lost or a.ended)]
    rows = [(a.claimed.id, a.claimed.claim, a.started_at or 0, FORCED_TEXT) for a in taken if a.started_at is not None]
    if rows and take_away(engine_state, connection, worker, rows, AttemptEnd.CANCELLED, "Cancelled"):
        for task_id, *_ in rows:
            log.warning("task cancelled by force: its handler keeps its slot until it ends", extra={"task": task_id})


def wake_missed(engine_state: EngineState, connection: sa.Connection) -> bool:
    """Wake suspended tasks that two transactions missed, see ``store/durable/waits.py``. True: some were."""
    with engine_state.database.write(connection) as tx:
        return waits.wake_missed(tx) > 0


def keep_logs(engine_state: EngineState, connection: sa.Connection) -> None:
    """Store the output of running attempts so far, for ``schedctl logs --follow``."""
    rows, written = [], []
    for (task_id, claim), attempt in list(engine_state.held.items()):
        tail = attempt.tail
        if tail is not None and tail.added != attempt.tail_written:
            written.append((attempt, tail.added))
            rows.append((task_id, f"log:{claim}", tail.text()))
    if rows:
        with engine_state.database.write(connection) as tx:
            write_values(tx, rows)
    for attempt, added in written:
        attempt.tail_written = added


def write_rollups(engine_state: EngineState, connection: sa.Connection) -> None:
    """Add what was counted to the stored numbers; it is counted on if that fails."""
    counter = engine_state.rollups
    if not counter:
        return
    cells = counter.take()  # the metrics take it over, too
    if not engine_state.options.rollups:
        return
    try:
        with engine_state.database.write(connection) as tx:
            rollups.add(tx, cells)
    except BaseException:
        counter.put_back(cells)
        raise


class RetentionJob:
    """Purges ended tasks in batches that are short enough for other work to wait."""

    def __init__(self, engine_state: EngineState) -> None:
        self.engine_state = engine_state
        self.batch = retention.BATCH
        self._review: int | None = 0  # from this id on: successes that an engine with a longer retention kept

    def sweep(self, connection: sa.Connection) -> bool:
        """Remove one batch. True: there is more."""
        engine_state, kept = self.engine_state, self.engine_state.options.retention
        with engine_state.database.write(connection) as tx:
            begun = engine_state.monotonic()  # after the wait for other writers, which must not make the batch smaller
            removed = retention.purge_batch(tx, kept, self.batch)
            if removed.more:
                self._fit(engine_state.monotonic() - begun)
            after = self._review
            if after == 0 and not retention.has_deferred(tx):
                after = None
            if after is not None and not removed.more:
                reviewed, after = retention.rescan(tx, kept, after)
                removed = removed.plus(reviewed)
            busy = removed.more or after is not None
            if not busy:
                busy = rollups.compact(tx, round(kept["stats"] * SECOND))
        self._review = after
        if removed.tasks or removed.results:
            log.debug("retention removed %d tasks, and the results of %d", removed.tasks, removed.results)
        return busy

    def _fit(self, took: float) -> None:
        """Fit the next batch to its time: a high task that comes meanwhile waits for its end."""
        fits = self.batch * SWEEP_TARGET_S / took if took > 0 else self.batch
        self.batch = round(min(SWEEP_BATCH_BOUNDS[1], max(SWEEP_BATCH_BOUNDS[0], (self.batch + fits) / 2)))


class ZoneFiles:
    """The files of the zones in use, as they were when they were last looked at."""

    def __init__(self) -> None:
        self._seen: dict[str, object] | None = None

    def refresh(self) -> None:
        """Have the zones read anew if one of their files is another now; the first time in any case."""
        now = {name: _state(name) for name in zones_read()}
        if self._seen is None or any(self._seen.get(name, state) != state for name, state in now.items()):
            forget_zones()
        self._seen = (self._seen or {}) | now


def _state(name: str) -> object:
    """Which file has the zone's rules, and which state of it; found as ZoneInfo finds it."""
    for root in zoneinfo.TZPATH:
        with suppress(OSError, ValueError):
            state = os.stat(os.path.join(root, name))
            return root, state.st_mtime_ns, state.st_size, state.st_ino
    try:
        return version("tzdata")  # the package is read where the system has no rules
    except PackageNotFoundError:
        return None
