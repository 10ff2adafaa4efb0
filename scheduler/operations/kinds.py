"""Kinds and queues: their names, how they do, what holds them back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from scheduler.model.live_settings import KIND
from scheduler.operations import limits
from scheduler.operations.limits import LimitInEffect, LimitTarget
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.pauses import Pause as Pause
from scheduler.store.read import figures
from scheduler.store.read.figures import ReadyTasks
from scheduler.store.read.history import FailedAttempt, failed_attempts
from scheduler.store.read.kinds import KindRecord as KindRecord
from scheduler.store.read.kinds import get_kind as get_kind
from scheduler.store.read.kinds import kind_names as kind_names
from scheduler.store.read.kinds import unknown_kind as unknown_kind
from scheduler.store.read.names import ids_from as ids_from
from scheduler.store.read.names import queue_names as queue_names
from scheduler.store.read.names import unknown_queue as unknown_queue
from scheduler.store.read.queues import QueueRecord as QueueRecord
from scheduler.store.read.queues import queues as queues
from scheduler.store.read.search import Term, any_with
from scheduler.store.read.stats import FAILURES as FAILURES
from scheduler.store.read.stats import Numbers as Numbers
from scheduler.store.read.stats import StatsRecord as StatsRecord
from scheduler.store.read.stats import stats as stats
from scheduler.store.read.tasks import TaskRecord, get_tasks
from scheduler.store.read.work_now import WorkNow as WorkNow
from scheduler.store.read.work_now import work_now


class Overview(NamedTuple):
    """``names``: those with most attempts first; ``limits``: of as many as were asked for; ``backlog``: due tasks of
    each queue, and since when the oldest only wants a worker."""

    at: int
    stats: StatsRecord
    names: list[str]
    limits: Mapping[str, list[LimitInEffect]]
    pauses: Mapping[tuple[str, str], Pause]
    backlog: Mapping[str, tuple[int, int | None]]


class One(NamedTuple):
    """A kind or a queue: its numbers, its pause, its work now; ``record``, ``limits``: of a kind; ``ready``: of a
    queue."""

    at: int
    stats: StatsRecord
    pause: Pause | None
    now: WorkNow
    record: KindRecord | None
    limits: list[LimitInEffect]
    ready: list[ReadyTasks]


def overview(tx: Tx, span: int, most: int) -> Overview:
    """The kinds over the last ``span`` microseconds, and the queues that have a backlog or a pause."""
    found, stopped, live = stats(tx, tx.now - span, tx.now), pauses.records(tx), limits.records(tx)
    names = [*found.kinds, *(name for name in kind_names(tx) if name not in found.kinds)]
    caps = {name: limits.of_kind(get_kind(tx, name), live.get(LimitTarget(KIND, name))) for name in names[:most]}
    backlog: dict[str, tuple[int, int | None]] = {one.name: (0, None) for one in stopped if one.scope == "queue"}
    for queue in figures.ready(tx):
        number, since = backlog.get(queue.queue, (0, None))
        oldest = min((at for at in (since, queue.since) if at is not None), default=None)
        backlog[queue.queue] = (number + queue.number, oldest)
    return Overview(tx.now, found, names, caps, {(one.scope, one.name): one for one in stopped}, backlog)


def one(tx: Tx, scope: Literal["kind", "queue"], name: str, span: int) -> One:
    """A kind or a queue over the last ``span`` microseconds."""
    stopped = next((p for p in pauses.records(tx) if (p.scope, p.name) == (scope, name)), None)
    if scope == "queue":
        found = stats(tx, tx.now - span, tx.now, queue=name)
        ready = [queue for queue in figures.ready(tx) if queue.queue == name]
        return One(tx.now, found, stopped, work_now(tx, scope, name), None, [], ready)
    found, record = stats(tx, tx.now - span, tx.now, kind=name), get_kind(tx, name)
    caps = limits.of_kind(record, limits.records(tx).get(LimitTarget(KIND, name)))
    return One(tx.now, found, stopped, work_now(tx, scope, name), record, caps, [])


def failures(tx: Tx, kind: str, span: int, most: int) -> list[tuple[FailedAttempt, TaskRecord | None]]:
    """The latest failures of a kind, each with its task if that is stored."""
    found = failed_attempts(tx, tx.now - span, tx.now + 1, most, kind)
    tasks = {task.id: task for task in get_tasks(tx, list({one.task_id for one in found}))}
    return [(one, tasks.get(one.task_id)) for one in found]


def is_queue(tx: Tx, name: str) -> bool:
    """Whether a pause or a task names a queue."""
    paused = any((one.scope, one.name) == ("queue", name) for one in pauses.records(tx))
    return paused or any_with(tx, Term("queue", (name,)))
