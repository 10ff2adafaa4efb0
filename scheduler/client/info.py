"""TaskInfo, AttemptInfo and ScheduleInfo: stored records as programs get them.

The store has integers; here instants are aware datetimes in UTC, and spans are timedeltas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from scheduler.model.envelope import Envelope
from scheduler.model.outcome import AttemptEnd
from scheduler.model.recurrence import Recurrence
from scheduler.model.state import TaskState
from scheduler.model.task_columns import INSTANTS, SPANS, TaskColumns
from scheduler.model.times import to_datetime
from scheduler.ports import FOREVER
from scheduler.store.read.history import traceback_in
from scheduler.store.read.schedules import ScheduleRecord
from scheduler.store.read.tasks import AttemptRecord, TaskRecord
from scheduler.store.schedule_runs import decode_graph

T = TypeVar("T")


class TaskInfo(TaskColumns[datetime, datetime | None, timedelta], frozen=True, kw_only=True):
    """Everything stored of one task.

    ``payload`` is JSON text, ``result`` what the handler returned (None if nothing, or not yet, or no longer).
    ``run_at``: not before then; None while it waits for an event without an end. ``worker``: the id of the worker
    that holds it. ``unmet``: how many of its dependencies are not satisfied. ``rerun``: it was replaced while an
    attempt is under way, and runs once more after it.
    """

    attempts_used: int
    result: Any


class AttemptInfo(NamedTuple):
    """One attempt that has ended. ``worker`` is ``host:pid``; ``claim`` grows with every claim of the task.

    ``envelope``: what its message carried, which may have been replaced since. ``status_code``: what another service
    had answered when it failed, if its error names it. ``trace``: the context of its span as a W3C ``traceparent``,
    None if it was not traced. ``traceback``: of the error that a handler raised, as long as the attempt's log is kept.
    """

    number: int
    claim: int
    outcome: AttemptEnd
    worker: str
    worker_id: int
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime
    error: str | None
    error_class: str | None
    fingerprint: str | None
    status_code: int | None
    envelope: Envelope
    trace: str | None = None
    traceback: str | None = None


class TaskPage(list[TaskInfo]):
    """Tasks, and where the next page begins: ``cursor``, None if there are no ``more``."""

    def __init__(self, tasks: Iterable[TaskInfo] = (), cursor: int | None = None) -> None:
        super().__init__(tasks)
        self.cursor = cursor

    @property
    def more(self) -> bool:
        """Whether another page follows."""
        return self.cursor is not None


class ScheduleInfo(NamedTuple):
    """A recurring schedule. ``next_at`` is None while the run is under way that a fixed delay counts from, and once its
    end has passed.

    ``owner``: the set of ``schedules.sync()`` that it belongs to. ``jitter``: a run is due up to so long after its fire
    time. ``tasks``: how many tasks one run has; more than one, or kind ``(graph)``, for a recurring graph.
    ``trouble`` says why what is stored cannot be read, if it cannot; ``recurrence`` only says so, too, then.
    """

    name: str
    kind: str
    payload: str
    recurrence: Recurrence
    catchup: str
    overlap: str
    paused: bool
    next_at: datetime | None
    last_slot: datetime | None
    last_task: int | None
    created_at: datetime
    updated_at: datetime
    seen_at: datetime
    trouble: str | None = None
    jitter: timedelta = timedelta()
    owner: str | None = None
    tasks: int = 1


class RunInfo(NamedTuple):
    """One run of a schedule: the task of one fire time, or all tasks of its graph.

    ``run``: the run's name: ``name@slot``, for a graph the correlation of its tasks. ``slot``: the fire time; None for
    a run beside those. ``origin``: ``schedule``, ``backfill`` or ``trigger``. ``state``: of the whole; of several tasks
    ``running`` once one has begun, and how the worst has ended once all have. ``states``: how many tasks are in each
    state. ``first``: the id of its first task. ``error``: of a task that ended without success.
    """

    schedule: str
    run: str
    slot: datetime | None
    origin: str
    state: TaskState
    states: dict[TaskState, int]
    first: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None


def instant(us: int | None) -> datetime | None:
    """Microseconds as an aware datetime; None if there is no time."""
    return None if us is None or us >= FOREVER else to_datetime(us)


def span(us: int | None) -> timedelta | None:
    """Microseconds as a timedelta; None if there is no time."""
    return None if us is None else timedelta(microseconds=us)


@cache
def _readers(form: Callable[..., Any]) -> dict[str, Callable[[Any], Any]]:
    readers: dict[str, Callable[[Any], Any]] = {}
    for name, hint in get_type_hints(form).items():
        kinds = (hint, *get_args(hint))
        readers[name] = instant if datetime in kinds else span if timedelta in kinds else lambda value: value
    return readers


def info(form: Callable[..., T], record: object, **made: Any) -> T:
    """The public form of a stored record: its fields of the same names, with datetimes and timedeltas for integers.

    ``made``: fields that the record does not have, or has otherwise.
    """
    readers = _readers(form).items()
    given = {name: read(getattr(record, name)) for name, read in readers if name not in made}
    return form(**given, **made)


def task_info(record: TaskRecord) -> TaskInfo:
    """The public form of a stored task."""
    values = {name: getattr(record, name) for name in TaskInfo.__struct_fields__}
    for name in INSTANTS:
        values[name] = instant(values[name])
    for name in SPANS:
        values[name] = span(values[name])
    return TaskInfo(**values)


def attempt_info(record: AttemptRecord, log: str | None = None) -> AttemptInfo:
    """The public form of a stored attempt. ``log``: what it wrote."""
    return info(AttemptInfo, record, traceback=None if record.error is None else traceback_in(log))


def schedule_info(record: ScheduleRecord) -> ScheduleInfo:
    """The public form of a stored schedule."""
    return info(ScheduleInfo, record, tasks=1 if record.graph is None else len(decode_graph(record.graph)))
