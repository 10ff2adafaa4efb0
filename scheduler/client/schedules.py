"""Recurring schedules: list, pause, resume, trigger, delete."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from scheduler.client.batch import RecurringGraph
from scheduler.client.builder import RecurringBuilder
from scheduler.client.info import RunInfo, ScheduleInfo, info, schedule_info
from scheduler.client.threads import CallThreads, in_thread
from scheduler.errors import ConfigError, DuplicateScheduleError
from scheduler.model.names import check_text, check_whole
from scheduler.model.spec import TaskId
from scheduler.model.times import instant_us, to_datetime
from scheduler.operations import schedules
from scheduler.operations.schedules import CancelResult, SetChange

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations


MAX_BACKFILL = 10_000
MAX_NEXT = 100_000


class BackfillInfo(NamedTuple):
    """What a backfill did: the fire times that it runs, and those that it left out since they have run. UTC."""

    run: tuple[datetime, ...]
    left_out: tuple[datetime, ...]


class Schedules:
    """``jobs.schedules``: the recurring schedules."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    @property
    def threads(self) -> CallThreads:
        """The threads in which the awaited forms wait."""
        return self._owner.threads

    def list(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        with self._owner.desk.read() as tx:
            return [schedule_info(record) for record in schedules.records(tx)]

    def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises UnknownScheduleError."""
        with self._owner.desk.read() as tx:
            return schedule_info(schedules.record(tx, name))

    def pause(self, name: str) -> None:
        """Fire nothing until resumed. Raises UnknownScheduleError."""
        schedules.pause(self._owner.desk, name)

    def resume(self, name: str) -> None:
        """Continue with the next fire time. Raises UnknownScheduleError."""
        schedules.resume(self._owner.desk, name)

    def sync(
        self, wanted: Sequence[RecurringBuilder | RecurringGraph], *, owner: str = "default", dry_run: bool = False
    ) -> SetChange:
        """Make these the schedules of ``owner``, all or none: adds, updates, and deletes what the owner has besides.

        ``wanted``: builders that are not scheduled. ``owner``: a name of 1 to 255 characters. Programs that share a
        store need an owner each, since a schedule of the owner that is not in the set is deleted. Schedules of other
        owners, and those registered by ``schedule()``, are never deleted; one of the latter that is in the set becomes
        the owner's. ``dry_run``: change nothing, and return what would be changed.

        Raises DuplicateScheduleError for a name that is twice in the set, another owner's or another kind's;
        ConfigError, PayloadError.
        """
        check_text(owner, "owner")
        specs = []
        for builder in wanted:
            if not isinstance(builder, RecurringBuilder | RecurringGraph):
                raise ConfigError(f"sync takes recurring builders that are not scheduled, not {builder!r:.80}")
            specs.append(builder._schedule_spec()._replace(owner=owner))
        seen: set[str] = set()
        for spec in specs:
            if spec.name in seen:
                raise DuplicateScheduleError(spec.name, "is twice in the set: give each of its schedules a key()")
            seen.add(spec.name)
        done = schedules.sync(self._owner.desk, specs, owner, dry_run=dry_run)
        if not dry_run:
            for name in done.removed:
                self._owner._forget_schedule(name)
        return done

    def runs(self, name: str, *, limit: int = 50, cursor: int | None = None) -> builtins.list[RunInfo]:
        """The runs of one schedule whose tasks are still stored, newest first, at most ``limit``.

        ``cursor``: only runs before the one whose ``first`` this is, for the next page. Raises UnknownScheduleError.
        """
        check_whole(limit, "limit")
        check_whole(1 if cursor is None else cursor, "cursor")
        with self._owner.desk.read() as tx:
            return [info(RunInfo, record) for record in schedules.runs(tx, name, limit, cursor)]

    def trigger(self, name: str, slot: datetime | None = None) -> TaskId:
        """Run it once now, besides its fire times; or ``slot``: the run of this fire time (aware), if it has not run.

        Returns the id of the run's first task; of a fire time that has run that one's, with ``created`` False. A run
        whose tasks were removed counts for ``[retention] outcomes``, and the last one always.
        Raises UnknownScheduleError; InvalidScheduleError for an instant that is no fire time of it.
        """
        at = None if slot is None else instant_us(slot, "slot")
        return schedules.trigger(self._owner.desk, name, at).made

    def backfill(
        self, name: str, start: datetime, end: datetime | None = None, *, limit: int = 100, dry_run: bool = False
    ) -> BackfillInfo:
        """Run the fire times from ``start`` to ``end`` (aware, both included; None: now) that have not run, at once.

        Each fire time runs once, however often this is called: one is left out while its tasks are stored, and for
        ``[retention] outcomes`` after they were removed. The runs overlap, whatever ``overlap()`` says; their tasks
        have the cause ``backfill:<when>``. ``limit``: how many fire times there may be, 10,000 at most. ``dry_run``:
        store nothing, and return what would be run.

        Raises UnknownScheduleError; ConfigError if there are more; InvalidScheduleError for a fixed delay, and for an
        end that is still to come.
        """
        check_whole(limit, "limit", 1, MAX_BACKFILL)
        first = instant_us(start, "start")
        last = None if end is None else instant_us(end, "end")
        done = schedules.backfill(self._owner.desk, name, first, last, limit, dry_run=dry_run)
        return BackfillInfo(tuple(map(to_datetime, done.run)), tuple(map(to_datetime, done.left_out)))

    def cancel(self, name: str, slot: datetime | None = None, *, run: str | None = None) -> CancelResult:
        """Cancel the tasks of its runs that have not ended: of all runs, of that of a fire time, or of the named one.

        ``run``: as :meth:`runs` names it. Running tasks are asked to end. The schedule itself goes on. Raises
        UnknownScheduleError.
        """
        at = None if slot is None else instant_us(slot, "slot")
        return schedules.cancel_runs(self._owner.desk, name, slot=at, run=run)

    def delete(self, name: str) -> None:
        """Delete the schedule; tasks that it made stay. Raises UnknownScheduleError."""
        schedules.delete(self._owner.desk, name)
        self._owner._forget_schedule(name)

    def next(self, name: str, n: int = 1) -> Sequence[datetime]:
        """Its next ``n`` fire times (1 to 100,000), UTC; of overdue ones only those that will still run.

        Raises UnknownScheduleError, ConfigError."""
        check_whole(n, "n", 1, MAX_NEXT)
        with self._owner.desk.read() as tx:
            found, now = schedules.record(tx, name), tx.now
        return [to_datetime(us) for us in schedules.upcoming(found, n, now)]

    get_async = in_thread(get)
    pause_async = in_thread(pause)
    resume_async = in_thread(resume)
    sync_async = in_thread(sync)
    runs_async = in_thread(runs)
    trigger_async = in_thread(trigger)
    backfill_async = in_thread(backfill)
    cancel_async = in_thread(cancel)
    delete_async = in_thread(delete)
    next_async = in_thread(next)
    list_async = in_thread(list)
