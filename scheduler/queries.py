"""The part of the Scheduler that looks at stored tasks and changes them: get, list, wait, cancel, retry."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from scheduler.builder import check_text
from scheduler.dead_letters import DeadLetters, check_filters
from scheduler.errors import (
    ConfigError,
    CycleError,
    PayloadError,
    ResultExpiredError,
    StoreUnavailableError,
    TaskCancelledError,
    TaskFailedError,
    UnknownDependencyError,
    UnknownTaskError,
)
from scheduler.model.checkpoint import MAX_VALUE
from scheduler.model.registry import Registry, encode_json
from scheduler.model.retry import RetryPolicy
from scheduler.model.spec import EdgeSpec, TaskId
from scheduler.model.state import DEFAULT_OTHERWISE, Otherwise, TaskState, When
from scheduler.model.times import LONGEST, span_us, to_datetime
from scheduler.ports import SECOND
from scheduler.records import AttemptInfo, ScheduleInfo, TaskInfo, attempt_info, schedule_info, task_info
from scheduler.store import control, events, read_schedules, read_tasks, retention, schedules
from scheduler.store.control import CancelResult
from scheduler.store.database import Database
from scheduler.store.dead_letters import Filter
from scheduler.store.doorbell import ring_after_commit
from scheduler.store.enqueue import callers_connection, hold_writes
from scheduler.store.events import Emit
from scheduler.store.paths import find_path
from scheduler.store.read_tasks import EdgeRecord, TaskRecord
from scheduler.store.redrive import redrive

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.orm import Session


log = logging.getLogger("scheduler")
TOGETHER = 100  # retried in one transaction
MOST_AT_ONCE = 10_000
_LOOK_EVERY = (0.005, 0.25)  # seconds between looks while waiting: first, most


class Schedules:
    """``jobs.schedules``: the recurring schedules."""

    def __init__(self, owner: Queries) -> None:
        self._owner = owner

    def list(self) -> list[ScheduleInfo]:
        """All schedules, by name."""
        with self._owner.database.read() as connection:
            return [schedule_info(record) for record in read_schedules.records(connection)]

    def get(self, name: str) -> ScheduleInfo:
        """One schedule. Raises UnknownScheduleError."""
        with self._owner.database.read() as connection:
            return schedule_info(read_schedules.record(connection, name))

    def pause(self, name: str) -> None:
        """Fire nothing until resumed. Raises UnknownScheduleError."""
        self._pause(name, True)

    def resume(self, name: str) -> None:
        """Go on with the next slot. Raises UnknownScheduleError."""
        self._pause(name, False)

    def _pause(self, name: str, paused: bool) -> None:
        with self._owner.database.write() as connection:
            schedules.pause(connection, name, self._owner.database.now(), paused)
        self._owner._ring()

    def trigger(self, name: str) -> TaskId:
        """Run it once now, beside its slots. Raises UnknownScheduleError."""
        with self._owner.database.write() as connection:
            made = schedules.trigger(connection, name, self._owner.database.now())
        self._owner._ring()
        return made

    def delete(self, name: str) -> None:
        """Forget it; tasks that it made stay. Raises UnknownScheduleError."""
        with self._owner.database.write() as connection:
            schedules.delete(connection, name)

    def next(self, name: str, n: int = 1) -> Sequence[datetime]:
        """Its next ``n`` instants, UTC; of those that are overdue only what is still to be run. Raises
        UnknownScheduleError."""
        with self._owner.database.read() as connection:
            found = read_schedules.record(connection, name)
        return [to_datetime(us) for us in read_schedules.upcoming(found, n, self._owner.database.now())]


class Queries:
    """Needs ``database``, ``registry`` and ``_ring`` of the Scheduler."""

    database: Database
    registry: Registry

    def _ring(self) -> None:
        raise NotImplementedError

    @property
    def schedules(self) -> Schedules:
        """The recurring schedules."""
        return Schedules(self)

    @property
    def dead_letters(self) -> DeadLetters:
        """The tasks that failed for good."""
        return DeadLetters(self)

    # looking

    def get_task(self, task_id: int) -> TaskInfo:
        """Everything stored of a task. Raises UnknownTaskError."""
        with self.database.read() as connection:
            return self._info(read_tasks.get_task(connection, check_id(task_id)))

    def _info(self, record: TaskRecord) -> TaskInfo:
        return task_info(record.at(self.database.now()))

    def get_task_status(self, task_id: int) -> TaskState:
        """Its state. Raises UnknownTaskError."""
        return self.get_task(task_id).state

    def list_tasks(
        self,
        status: str | Iterable[str] | None = None,
        *,
        kind: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        correlation: str | None = None,
        subject: str | None = None,
        limit: int = 100,
        cursor: int | None = None,
    ) -> list[TaskInfo]:
        """Tasks, newest first. ``status``: states or short names; ``cursor``: only ids below it. Raises ConfigError."""
        check_filters(kind=kind, queue=queue, key=key, correlation=correlation, subject=subject)
        for name, number in (("limit", limit), ("cursor", 0 if cursor is None else cursor)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63 - 1:
                raise ConfigError(f"{name} must be a whole number from 0, not {number!r:.80}")
        with self.database.read() as connection:
            found, _ = read_tasks.list_tasks(
                connection,
                states=None if status is None else parse_states(status),
                kind=kind,
                queue=queue,
                key=key,
                correlation=correlation,
                subject=subject,
                limit=limit,
                cursor=cursor,
            )
        return [self._info(record) for record in found]

    def get_task_dependencies(self, task_id: int) -> list[EdgeRecord]:
        """What it waits for, or waited. Raises UnknownTaskError."""
        with self.database.read() as connection:
            read_tasks.get_task(connection, check_id(task_id))
            return list(read_tasks.dependencies(connection, task_id))

    def get_dependents(self, task_id: int) -> list[EdgeRecord]:
        """What waits for it. Raises UnknownTaskError."""
        with self.database.read() as connection:
            read_tasks.get_task(connection, check_id(task_id))
            return list(read_tasks.dependents(connection, task_id))

    def check_for_cycles(self, task_id: int) -> None:
        """Raise CycleError if the stored edges lead from this task back to it. They cannot, unless by other hands."""
        with self.database.read() as connection:
            read_tasks.get_task(connection, task_id)
            for edge in read_tasks.dependents(connection, task_id):
                path = find_path(connection, self.database.dialect, edge.child, task_id)
                if path:
                    raise CycleError([task_id, *path])

    def get_attempts(self, task_id: int) -> list[AttemptInfo]:
        """Its executions so far, oldest first. Raises UnknownTaskError."""
        with self.database.read() as connection:
            read_tasks.get_task(connection, check_id(task_id))
            return [attempt_info(record) for record in read_tasks.attempts(connection, task_id)]

    def get_retry_count(self, task_id: int) -> int:
        """How many retries it has had. Raises UnknownTaskError."""
        return max(0, self.get_task(task_id).attempt - 1)

    def get_last_error(self, task_id: int) -> str | None:
        """The error of its last failed attempt. Raises UnknownTaskError."""
        return self.get_task(task_id).error

    def progress(self, task_id: int) -> tuple[float | None, str | None]:
        """(percent, message) as last reported. Raises UnknownTaskError."""
        task = self.get_task(task_id)
        return task.progress, task.progress_message

    # waiting

    def result(self, task_id: int, timeout: float | timedelta | None = None) -> Any:
        """What the handler returned. Waits for ever on None, not at all on 0 (seconds or timedelta).

        Raises TaskFailedError, TaskCancelledError, ResultExpiredError, UnknownTaskError, TimeoutError. What
        :meth:`wait` says of a database that goes away holds here, too.
        """
        check_id(task_id)
        try:
            task = self._wait([task_id], timeout)[task_id]
        except UnknownTaskError:
            with self.database.read() as connection:  # its end may be remembered
                return read_tasks.result_of(connection, task_id, self.database.now())
        if task.state is TaskState.CANCELLED:
            raise TaskCancelledError(task_id)
        if task.state is not TaskState.SUCCESS:
            raise TaskFailedError(task_id, task.error)
        try:
            with self.database.read() as connection:
                return read_tasks.result_of(connection, task_id, self.database.now())
        except ResultExpiredError:
            self._expire(task_id)
            raise

    def _expire(self, task_id: int) -> None:
        """Nobody will get this result any more: delete it, if the database can be written to just now."""
        with suppress(StoreUnavailableError), self.database.write() as connection:
            retention.expire(connection, self.database.dialect, task_id, self.database.now())

    def wait(self, ids: int | Iterable[int], timeout: float | timedelta | None = None) -> dict[int, TaskInfo]:
        """Wait until all of these tasks have ended; returns them by id.

        None waits for ever, 0 not at all (seconds or timedelta). A database that goes away meanwhile is waited for, if
        that may help. Raises TimeoutError, UnknownTaskError; StoreUnavailableError if it is away at once, or still when
        the time is up.
        """
        wanted = [check_id(task_id) for task_id in ([ids] if isinstance(ids, int) else ids)]
        return {task_id: self._info(record) for task_id, record in self._wait(wanted, timeout).items()}

    def _wait(self, wanted: Sequence[int], timeout: float | timedelta | None) -> dict[int, TaskRecord]:
        deadline = None if timeout is None else time.monotonic() + span_us(timeout, "timeout") / SECOND
        pause, never = _LOOK_EVERY[0], threading.Event()
        done: dict[int, TaskRecord] = {}
        seen = False
        while True:
            trouble = None
            try:
                done |= self._ended([i for i in wanted if i not in done])
                seen = True
            except StoreUnavailableError as error:
                if not (seen and error.heals):
                    raise
                trouble = error
            if len(done) == len(set(wanted)):
                return {task_id: done[task_id] for task_id in wanted}
            left = float("inf") if deadline is None else deadline - time.monotonic()
            if left <= 0:
                if trouble is not None:
                    raise trouble
                still = [i for i in wanted if i not in done]
                raise TimeoutError(f"still not ended: {', '.join(map(str, still[:10]))}")
            never.wait(min(pause, left))
            pause = min(_LOOK_EVERY[1], pause * 1.5)

    def _ended(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        """Those of these that have ended. Raises UnknownTaskError."""
        with self.database.read() as connection:
            # One statement for all that may still be going on, and one for what has ended: there may be thousands.
            ended = [i for i, end in read_tasks.ends(connection, ids).items() if end is not None]
            found = {task.id: task for task in read_tasks.get_tasks(connection, ended)}
        for task_id in ended:
            if task_id not in found:
                raise UnknownTaskError(task_id)  # its row has been removed
        return {task_id: task for task_id, task in found.items() if task.state.terminal}

    # changing

    def cancel_task(self, task_id: int, cascade: bool = False) -> CancelResult:
        """End a task at once, or ask it to end if it is running; a second time, and on an ended task, a no-op.

        ``cascade``: its dependants by success end cancelled too, instead of by their *otherwise*. Raises
        UnknownTaskError.
        """
        check_id(task_id)
        done = self.database.change(lambda c: control.cancel(c, [task_id], self.database.now(), cascade=cascade))
        self._ring()
        return done

    def retry_task(self, task_id: int, downstream: bool = True) -> None:
        """Run an ended, unsuccessful task again with a new budget, and revive the tasks that ended because of it.

        A task that waits for a retry or its time runs now. Raises UnknownTaskError, InvalidTransitionError.
        """
        check_id(task_id)
        self.database.change(lambda c: control.retry(c, task_id, self.database.now(), downstream=downstream))
        self._ring()

    def retry_failed(
        self,
        *,
        kind: str | None = None,
        key: str | None = None,
        correlation: str | None = None,
        subject: str | None = None,
        limit: int = 100,
        downstream: bool = True,
    ) -> list[TaskId]:
        """Retry what has failed, or died, by itself, of these; at most ``limit``, those that ended first before others.

        At least one of the filters is to be given. A task whose key another one holds is left as it is, and a warning
        is logged. What fails again meanwhile is left for another call. Returns the ids. Raises ConfigError.
        """
        check_filters(kind=kind, key=key, correlation=correlation, subject=subject)
        if kind is None and key is None and correlation is None and subject is None:
            raise ConfigError("retry_failed wants to know which: kind, key, correlation or subject")
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_AT_ONCE:
            raise ConfigError(f"limit must be a whole number from 1 to {MOST_AT_ONCE}, not {limit!r}")
        self.database.open()  # before that it does not know the server's clock
        now = self.database.now
        wanted = Filter(kind, before=now() + 1, key=key, correlation=correlation, subject=subject)
        done: list[TaskId] = []
        left, after, more = limit, (0, 0), True
        while more and left > 0:
            count, since = min(TOGETHER, left), after
            one = self.database.change(
                lambda c, n=count, s=since: redrive(c, now(), wanted, limit=n, downstream=downstream, after=s)  # type: ignore[misc]
            )
            done += [TaskId(i, created=False) for i in one.ids]
            for task_id, holder in one.conflicts.items():
                log.warning("not retried: task %d holds its key", holder, extra={"task": task_id})
            left, after, more = left - len(one.ids), one.last, one.more
            if one.ids:
                self._ring()
        return done

    def add_dependency(self, child: int, parent: int, when: str = "success", otherwise: str | None = None) -> None:
        """Let a stored task that has not been claimed wait for another one.

        If it waits for that one already, the conditions of this call take the place of those.

        Raises CycleError, UnknownTaskError, UnknownDependencyError, InvalidTransitionError, ConfigError.
        """
        try:
            end = When(when)
            other = DEFAULT_OTHERWISE[end] if otherwise is None else Otherwise(otherwise)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        check_id(child)
        try:
            edge = EdgeSpec(check_id(parent), end, other)
        except UnknownTaskError:
            raise UnknownDependencyError([parent]) from None
        self.database.change(lambda c: control.add_dependency(c, child, edge, self.database.now()))
        self._ring()  # an edge that is broken already ends the child, and others may wait for that

    def set_retry_policy(self, task_id: int, policy: RetryPolicy) -> None:
        """Change how a task that has not ended is retried. Raises UnknownTaskError, InvalidTransitionError."""
        if not isinstance(policy, RetryPolicy):
            raise ConfigError(f"set_retry_policy takes a RetryPolicy, not {policy!r}")
        check_id(task_id)
        with self.database.write() as connection:
            control.set_retry_policy(connection, task_id, policy.to_json(), policy.max_attempts)

    def cleanup_completed_tasks(self, older_than_hours: float = 24) -> int:
        """Remove succeeded tasks that ended longer ago than this; their outcome is remembered. Returns how many."""
        seconds = _hours(older_than_hours) / SECOND
        kept = {"success": seconds, "failed": float(10**9), "outcomes": float(10**9), "events": float(10**9)}
        removed = 0
        after: int | None = 0
        while after is not None:
            with self.database.write() as connection:
                now = self.database.now()
                one, after = retention.review(connection, self.database.dialect, now, kept, after)
            removed += one.tasks
        return removed

    # events

    def emit_event(self, name: str, payload: Any = None, connection: sa.Connection | Session | None = None) -> bool:
        """Emit an event: whoever awaits it, now or later, gets the payload (JSON, 1 MiB at most).

        The first emit of a name wins; False if this was not the first, and nothing was changed. ``connection``: the
        caller's own; the event then commits with the caller's rows. Raises PayloadError.
        """
        emit = [Emit(check_text(name, "an event's name"), event_payload(payload))]
        if connection is not None:
            own = callers_connection(connection)
            self.database.open()
            hold_writes(own)
            new, _ = events.emit(own, emit, self.database.now())
            ring_after_commit(own, self._ring)
        else:
            new, _ = self.database.change(lambda c: events.emit(c, emit, self.database.now()))
            self._ring()
        return bool(new)

    def cleanup_events(self, older_than_hours: float) -> int:
        """Remove events that were emitted longer ago than this, but for those that somebody waits for."""
        span = _hours(older_than_hours)
        removed, batch = 0, events.BATCH
        while batch >= events.BATCH:
            batch = self.database.change(lambda c: events.cleanup(c, self.database.now() - span))
            removed += batch
        return removed


def check_id(task_id: int) -> int:
    """A task's id. Raises UnknownTaskError for a number that can be none, ConfigError for what is no number."""
    if not isinstance(task_id, int) or isinstance(task_id, bool):
        raise ConfigError(f"a task's id is the number that schedule() returned, not {task_id!r:.80}")
    if not 0 < task_id < 2**63:
        raise UnknownTaskError(task_id)
    return task_id


def _hours(given: float) -> int:
    """As microseconds. Raises ConfigError."""
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given <= LONGEST / SECOND / 3600:
        raise ConfigError(f"older_than_hours must be a number of hours from 0, not {given!r:.80}")
    return round(given * 3600 * SECOND)


def event_payload(payload: Any) -> str | None:
    """JSON text of an event's payload, None for None. Raises PayloadError."""
    if payload is None:
        return None
    text = encode_json(payload, "an event's payload")
    if len(text) > MAX_VALUE:
        raise PayloadError(f"an event's payload is {len(text)} bytes of JSON, over the limit of {MAX_VALUE}")
    return text


def parse_states(given: str | Iterable[str]) -> Sequence[TaskState]:
    """State names and short names as states. Raises ConfigError that lists what there is."""
    names = [given] if isinstance(given, str) else list(given)
    found: list[TaskState] = []
    for name in names:
        # "failed" is the one state, "Failed" the short name of four
        matching = [s for s in TaskState if name == s.value]
        matching = matching or [s for s in TaskState if str(name).lower() == s.simple.lower()]
        if not matching:
            raise ConfigError(
                f"there is no state {name!r}; there are {', '.join(TaskState)} and "
                f"{', '.join(dict.fromkeys(s.simple for s in TaskState))}"
            )
        found += matching
    return found
