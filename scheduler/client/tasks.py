"""TaskOperations, the part of the Scheduler that reads and changes stored tasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, overload

from scheduler.client.dead_letters import DeadLetters, warn_left, warn_stale
from scheduler.client.info import AttemptInfo, TaskInfo, TaskPage, attempt_info, task_info
from scheduler.client.schedules import Schedules
from scheduler.client.threads import CallThreads
from scheduler.client.waiting import Wait
from scheduler.errors import (
    ConfigError,
    CycleError,
    ResultExpiredError,
    StoreUnavailableError,
    TaskCancelledError,
    TaskFailedError,
    UnknownDependencyError,
    UnknownTaskError,
)
from scheduler.model.registry import Registry
from scheduler.model.retry import RetryPolicy
from scheduler.model.spec import EdgeSpec, TaskId, check_id
from scheduler.model.state import (
    DEFAULT_OTHERWISE,
    EndedName,
    Otherwise,
    OtherwiseName,
    StateName,
    TaskState,
    When,
    WhenName,
    parse_states,
)
from scheduler.model.times import LONGEST, brief, span_us
from scheduler.model.typed import R
from scheduler.operations import bulk, events, tasks, upkeep
from scheduler.operations.desk import Desk
from scheduler.operations.filter import Conditions, check_filters, is_filter, read_filter
from scheduler.operations.tasks import CancelResult
from scheduler.ports import SECOND
from scheduler.store.admin import retention
from scheduler.store.db.database import Database
from scheduler.store.db.tx import CallersTx
from scheduler.store.graph.cycles import find_path
from scheduler.store.read.search import search
from scheduler.store.read.tasks import (
    EdgeRecord,
    TaskRecord,
    attempt_log,
    attempt_logs,
    attempts,
    dependencies,
    dependents,
    get_task,
    result_of,
    traceback_in,
)
from scheduler.store.tasks.enqueue import callers_connection, hold_writes

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.client.submitter import PlainConnection


log = logging.getLogger("scheduler")


class TaskOperations:
    """Needs ``database``, ``registry``, ``threads``, and two methods of the Scheduler."""

    database: Database
    desk: Desk
    registry: Registry
    threads: CallThreads

    def _notify_after_commit(self, own: sa.Connection) -> None:
        raise NotImplementedError

    def _forget_schedule(self, name: str) -> None:
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
        with self.database.read() as tx:
            return self._info(get_task(tx, check_id(task_id)))

    def _info(self, record: TaskRecord) -> TaskInfo:
        return task_info(record.at(self.database.now()))

    def get_task_status(self, task_id: int) -> TaskState:
        """Its state. Raises UnknownTaskError."""
        return self.get_task(task_id).state

    def list_tasks(
        self,
        status: StateName | str | Iterable[StateName | TaskState] | TaskState | None = None,
        *,
        limit: int = 100,
        cursor: int | None = None,
        **filters: Unpack[Conditions],
    ) -> TaskPage:
        """Tasks, newest first, at most ``limit``: a list that says whether there are ``more``, and has the ``cursor``
        of the next ones. :meth:`iter_tasks` goes through all of them.

        ``status``: states or short names, or a filter: ``jobs.list_tasks("state:dead kind:Mail stored:<2h")``;
        ``kind``, ``queue``, ``key``, ``correlation``, ``subject``, ``payload``, ``older_than`` and the others of
        :class:`Conditions` are keywords. ``cursor``: only ids below it. Raises ConfigError.
        """
        text, states = ("", status) if not isinstance(status, str) or not is_filter(status) else (status, None)
        wanted = read_filter(self.desk.database, text, {"status": states, **filters}, bare=True)
        for name, number in (("limit", limit), ("cursor", 0 if cursor is None else cursor)):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63 - 1:
                raise ConfigError(f"{name} must be a whole number from 0, not {brief(number)}")
        with self.database.read() as tx:
            found = search(tx, wanted, limit=limit, cursor=cursor, whole=True)
        return TaskPage(map(self._info, found.tasks), found.cursor)

    def iter_tasks(
        self,
        status: StateName | str | Iterable[StateName | TaskState] | TaskState | None = None,
        *,
        page: int = 1000,
        **filters: Unpack[Conditions],
    ) -> Iterator[TaskInfo]:
        """All tasks that :meth:`list_tasks` finds, the newest first, read ``page`` at a time.

        Each page is a read of its own: a task that changes meanwhile is told as it was when its page was read, and one
        that is stored meanwhile is left out. Raises ConfigError.
        """
        cursor: int | None = None
        while True:
            found = self.list_tasks(status, limit=max(1, page), cursor=cursor, **filters)
            yield from found
            if found.cursor is None:
                return
            cursor = found.cursor

    def get_task_dependencies(self, task_id: int) -> list[EdgeRecord]:
        """The tasks that it waits for, or waited for. Raises UnknownTaskError."""
        with self.database.read() as tx:
            get_task(tx, check_id(task_id))
            return list(dependencies(tx, task_id))

    def get_dependents(self, task_id: int) -> list[EdgeRecord]:
        """The tasks that wait for it. Raises UnknownTaskError."""
        with self.database.read() as tx:
            get_task(tx, check_id(task_id))
            return list(dependents(tx, task_id))

    def check_for_cycles(self, task_id: int) -> None:
        """Raise CycleError if the stored edges lead from this task back to it.

        schedd never stores such edges; another program may have.
        """
        with self.database.read() as tx:
            get_task(tx, check_id(task_id))
            for edge in dependents(tx, task_id):
                path = find_path(tx, edge.child, task_id)
                if path:
                    raise CycleError([task_id, *path])

    def get_attempts(self, task_id: int) -> list[AttemptInfo]:
        """Its executions so far, oldest first. Raises UnknownTaskError."""
        with self.database.read() as tx:
            get_task(tx, check_id(task_id))
            logs = dict(attempt_logs(tx, task_id))
            return [attempt_info(record, logs.get(record.claim)) for record in attempts(tx, task_id)]

    def logs(self, task_id: int, attempt: int | None = None) -> str:
        """The output of an attempt, with its traceback; of the last one that wrote something by default.

        That is what went through ``ctx.log`` and ``ctx.capture``; in the daemon through any ``logging``, and in child
        processes what was printed, too. ``attempt``: its number, from 1. Empty if it wrote nothing, or it is kept no
        more. Raises UnknownTaskError.
        """
        with self.database.read() as tx:
            get_task(tx, check_id(task_id))
            found = dict(attempt_logs(tx, task_id))
            if attempt is not None:
                claims = [record.claim for record in attempts(tx, task_id) if record.number == attempt]
                found = {claim: found[claim] for claim in claims if claim in found}
        return found[max(found)] if found else ""

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

    @overload
    def result(self, task_id: TaskId[R], timeout: float | timedelta | str | None = None) -> R: ...
    @overload
    def result(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any: ...
    def result(self, task_id: int, timeout: float | timedelta | str | None = None) -> Any:
        """Wait for the task and return its result. None waits for ever, 0 not at all (seconds or timedelta).

        It is what the handler returned, as JSON gives it back: a tuple is a list, a datetime a text.

        Raises TaskFailedError, TaskCancelledError, ResultExpiredError, UnknownTaskError, TimeoutError; ConfigError in a
        handler, which would keep its slot: ``ctx.await_task(id)`` frees it. A database that goes away, or does not
        answer, is handled as in :meth:`wait`.
        """
        wait = Wait(self.database, [task_id], timeout)
        with self.database.within(wait.seconds):
            task: TaskRecord | None = None
            try:
                task = self._waited(wait)[task_id]
            except UnknownTaskError as error:
                if error.gone:
                    raise
            return self._outcome(task_id, task)

    def _outcome(self, task_id: int, task: TaskRecord | None) -> Any:
        """What an ended task returned; None: its row is not there. Raises what it ended with."""
        if task is None:
            with self.database.read() as tx:  # retention may have removed the row and kept its outcome
                return result_of(tx, task_id)
        if task.state is TaskState.CANCELLED:
            raise TaskCancelledError(task_id)
        if task.state is not TaskState.SUCCESS:
            raise TaskFailedError(task_id, task.error, self._traceback(task_id))
        try:
            with self.database.read() as tx:
                return result_of(tx, task_id)
        except ResultExpiredError:
            self._expire(task_id)
            raise

    def _traceback(self, task_id: int) -> str | None:
        with suppress(StoreUnavailableError), self.database.read() as tx:
            return traceback_in(attempt_log(tx, task_id))
        return None

    def _expire(self, task_id: int) -> None:
        """Delete an expired result, if the database can be written to just now."""
        with suppress(StoreUnavailableError):
            self.database.change(lambda tx: retention.expire(tx, task_id))

    def wait(
        self, ids: int | Iterable[int], timeout: float | timedelta | str | None = None, first: bool = False
    ) -> dict[int, TaskInfo]:
        """Wait until all of these tasks have ended; returns them by id. ``first``: until one has, and those that have.

        None waits for ever, 0 not at all (seconds or timedelta). If the database goes away meanwhile, and may come
        back, this waits for it. If it does not answer, this gives up less than a second after the time is up.

        Raises TimeoutError, which says what they wait for; UnknownTaskError; ConfigError in a handler, as
        :meth:`result`; StoreUnavailableError if the database is away at once, or still when the time is up.
        """
        wait = Wait(self.database, ids, timeout, first)
        with self.database.within(wait.seconds):
            return {task_id: self._info(record) for task_id, record in self._waited(wait).items()}

    def _waited(self, wait: Wait) -> dict[int, TaskRecord]:
        never = threading.Event()
        while not wait.look():
            never.wait(wait.pause())
        return wait.ended()

    # changing

    def cancel_task(self, task_id: int, cascade: bool = False, *, force: bool = False) -> CancelResult:
        """End a task at once, or ask it to end if it is running. Does nothing for an ended or cancelled task.

        ``cascade``: its dependants by success end cancelled too, instead of by their *otherwise*. ``force``: its worker
        ends a running one without waiting for its handler, which keeps its slot until it ends. Raises UnknownTaskError.
        """
        return tasks.cancel(self.desk, [task_id], cascade=cascade, force=force).done

    def retry_task(self, task_id: int, downstream: bool = True, *, rerun: bool = False) -> None:
        """Run an ended, unsuccessful task again with a new budget, and revive the tasks that ended because of it.

        A task that waits for a retry or its time runs now. A task that would be revived, and whose key another one has
        by now, stays as it ended: a warning is logged. A task that ran on the failure (``when="finished"`` or
        ``"failure"``) stays as it ended, too, and is logged; ``rerun`` has it run again after the task. Raises
        UnknownTaskError, InvalidTransitionError; DuplicateKeyError if another task holds its key or has completed under
        it since.
        """
        done = tasks.retry(self.desk, [task_id], downstream=downstream, rerun=rerun)
        warn_left(done.left)
        if not rerun:
            warn_stale(done.stale)

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
        """Retry tasks that failed or died by themselves, at most ``limit``, in the order in which they ended.

        At least one filter is needed. A task whose key another task holds, or has completed since, stays as it is, and
        a warning is logged. A task that fails again meanwhile is not retried twice. Returns the ids. Raises
        ConfigError.
        """
        if kind is None and key is None and correlation is None and subject is None:
            raise ConfigError("retry_failed wants to know which: kind, key, correlation or subject")
        given = {"kind": kind, "key": key, "correlation": correlation, "subject": subject}
        wanted = read_filter(self.desk.database, "", given)
        done = bulk.retry(self.desk, wanted, bulk.Run(limit), downstream=downstream)
        warn_done(done)
        return [TaskId(i, created=False) for i in done.changed]

    def add_dependency(
        self,
        child: int,
        parent: int,
        when: When | WhenName = "success",
        otherwise: Otherwise | OtherwiseName | None = None,
    ) -> None:
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
        tasks.add_dependency(self.desk, child, edge)

    def set_retry_policy(self, task_id: int, policy: RetryPolicy) -> None:
        """Change how a task that has not ended is retried. Raises UnknownTaskError, InvalidTransitionError."""
        if not isinstance(policy, RetryPolicy):
            raise ConfigError(f"set_retry_policy takes a RetryPolicy, not {policy!r}")
        check_id(task_id)
        tasks.set_retry(self.desk, task_id, policy.to_json(), policy.max_attempts)

    def cleanup_completed_tasks(
        self, older_than_hours: float = 24, *, kind: str | None = None, queue: str | None = None
    ) -> int:
        """Remove succeeded tasks that ended longer ago than this; their outcome is remembered. Returns how many.

        Their results go with them, whatever ``result_ttl`` and ``[retention] results`` say. One whose key is not free
        yet stays, and so does what others need. ``kind``, ``queue``: only those. Raises ConfigError.
        """
        return self._clean([TaskState.SUCCESS], _hours(older_than_hours), kind, queue)

    def cleanup_tasks(
        self,
        status: EndedName | Iterable[EndedName | TaskState] | TaskState,
        older_than: float | timedelta | str,
        *,
        kind: str | None = None,
        queue: str | None = None,
    ) -> int:
        """Remove tasks that ended so longer ago than this (seconds or timedelta); their outcome is remembered.

        ``status``: ended states or short names, such as ``"cancelled"`` or ``"Failed"``. ``kind``, ``queue``: only
        those. Tasks that others need stay, and successes as :meth:`cleanup_completed_tasks` says. Returns how many.
        Raises ConfigError.
        """
        states = parse_states(status)
        return self._clean(states, span_us(older_than, "older_than"), kind, queue)

    def _clean(self, states: Iterable[TaskState], age: int, kind: str | None, queue: str | None) -> int:
        check_filters(kind=kind, queue=queue)
        return upkeep.clean(self.desk, states, age, kind=kind, queue=queue).tasks

    # events

    def emit_event(self, name: str, payload: Any = None, connection: PlainConnection | None = None) -> bool:
        """Emit an event: each task that awaits it, now or later, gets the payload (JSON, 1 MiB at most).

        The first emit of a name wins; False if this was not the first, and nothing was changed. ``connection``: the
        caller's own; the event then commits with the caller's rows. Raises PayloadError; of a transaction of
        REPEATABLE READ or SERIALIZABLE sqlalchemy.exc.OperationalError (serialization_failure) if a task has begun to
        await the event since its snapshot: run that transaction again.
        """
        given = events.checked(name, payload)
        if connection is None:
            return self.desk.write(lambda tx: events.emit_in(tx, given))
        with callers_connection(connection) as own:
            self.database.open_beside(own)
            tx = CallersTx(own, self.database.now())
            hold_writes(tx)
            new = events.emit_on(tx, given, self.database)
            self._notify_after_commit(own)
        return new

    def cleanup_events(self, older_than_hours: float) -> int:
        """Remove events that were emitted longer ago than this and that no task awaits."""
        span = _hours(older_than_hours)
        return events.cleanup(self.desk, span)


def warn_done(done: bulk.Bulk) -> None:
    """Log the tasks that stay ended because another task has their key, and what ran on old ends."""
    for task_id, other in done.conflicts.items():
        log.warning("task %d is not retried: task %d has its key", task_id, other, extra={"task": task_id})
    warn_stale(done.stale)


def _hours(given: float) -> int:
    """As microseconds. Raises ConfigError."""
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given <= LONGEST / SECOND / 3600:
        raise ConfigError(f"older_than_hours must be a number of hours from 0, not {brief(given)}")
    return round(given * 3600 * SECOND)
