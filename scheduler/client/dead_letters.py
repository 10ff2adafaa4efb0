"""``jobs.dead_letters``: list, replay and purge tasks that failed for good."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from msgspec import UNSET

from scheduler.client.audit import AuditEntry
from scheduler.client.info import TaskInfo, info, span, task_info
from scheduler.client.threads import CallThreads, in_thread
from scheduler.errors import ConfigError
from scheduler.model.actor import acting_as
from scheduler.model.names import check_whole
from scheduler.model.spec import TaskId, check_id
from scheduler.model.task_filter import TaskFilter
from scheduler.operations import bulk
from scheduler.operations.dead_letters import replay
from scheduler.operations.filter import Filters, Marks, read_filter
from scheduler.operations.tasks import Other, Stale, told
from scheduler.store.read import dead_letters
from scheduler.store.read.audit import of_dead_letters, of_task

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations

Seconds = float | timedelta | str
_SAID = 100  # stale tasks that have a line of the log each
log = logging.getLogger("scheduler.dead_letters")


class DeadLetterMetrics(msgspec.Struct, frozen=True):
    """``oldest_age``: how long ago the oldest died, None if there is none; ``kinds``: how many of each kind."""

    count: int
    oldest_age: timedelta | None
    kinds: dict[str, int]


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Dead letters with one cause. ``runs``: what failed, such as ``EmailTask.run``; ``id`` and ``error`` are those of
    the newest task among them; ``oldest`` and ``newest``: when they died."""

    count: int
    kind: str
    error_class: str | None
    fingerprint: str | None
    runs: str
    id: int
    error: str | None
    oldest: datetime
    newest: datetime

    @property
    def text(self) -> str:
        """``412 × ConnectionRefused in EmailTask.run``."""
        return f"{self.count} × {self.error_class or 'error'} in {self.runs}"


class DeadLetters:
    """``jobs.dead_letters``. Ages are seconds or timedeltas since a task died. Everything raises
    StoreUnavailableError."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    @property
    def threads(self) -> CallThreads:
        """The threads in which the awaited forms wait."""
        return self._owner.threads

    def list(self, filter: str = "", *, limit: int = 100, **filters: Unpack[Filters]) -> Sequence[TaskInfo]:
        """Dead letters, those that died last first, as a text or :class:`Filters` choose them. Raises ConfigError."""
        wanted = self._filter(filter, filters)
        with self._owner.database.read() as tx:
            return [task_info(record) for record in dead_letters.find(tx, wanted, check_whole(limit, "limit"))]

    def groups(self, filter: str = "", *, limit: int = 100, **filters: Unpack[Filters]) -> Sequence[DeadLetterGroup]:
        """Dead letters by kind and cause, the largest group first. Raises ConfigError.

        ``group.text`` reads like ``412 × ConnectionRefused in EmailTask.run``."""
        wanted = self._filter(filter, filters)
        with self._owner.database.read() as tx:
            found = dead_letters.groups(tx, wanted, check_whole(limit, "limit"))
        return [info(DeadLetterGroup, group, count=group.number) for group in found]

    def get(self, task_id: int) -> TaskInfo:
        """One dead letter. Raises UnknownTaskError; InvalidTransitionError if the task is not dead."""
        with self._owner.database.read() as tx:
            return task_info(dead_letters.get(tx, check_id(task_id)))

    def replay(
        self,
        task_id: int,
        by: str | None = None,
        key: str | None = None,
        payload: Any = None,
        copy: bool = False,
        rerun: bool = False,
    ) -> TaskId:
        """Run a dead letter again with a new budget; returns its id, or that of the copy.

        The same task is opened again, with its attempts counting on, and what ended because of it comes back.
        ``copy``: a new task with the same options and a key of its own is made instead, the dead letter stays. ``by``:
        who, for the audit. ``key``, ``payload`` (an instance of the kind, or its fields as a dict) replace its own.
        A task that ended because of it, and whose key another one has, stays as it ended: a warning is logged.
        A task that ran on its failure stays as it ended, too, unless ``rerun`` has it run again after the task.

        Raises UnknownTaskError, InvalidTransitionError if it is not dead (any more), DuplicateKeyError if another task
        holds its key or has completed under it since, PayloadError, UnregisteredKindError; then nothing is changed.
        """
        new = UNSET if payload is None else payload
        if payload is not None:
            self._owner.registry.named(self._owner.get_task(task_id).kind)
        with acting_as(by):
            done = replay(self._owner.desk, [task_id], key=key, payload=new, copy=copy, rerun=rerun)
        warn_left(done.left)
        if not rerun:
            warn_stale(done.stale)
        return done.ids[0]

    def replay_all(
        self,
        limit: int = 100,
        by: str | None = None,
        *,
        filter: str = "",
        rate: float | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[TaskId]:
        """Replay up to ``limit`` of them, those that died first before others; returns their ids.

        One whose key another task holds, or has completed since, stays dead, and a warning is logged; so it is of what
        ran on their failures. Tasks that die again meanwhile are left for another call. ``rate``: tasks a second at
        most. Raises ConfigError.
        """
        asked = self._filter(filter, filters)
        with acting_as(by):
            done = bulk.replay(self._owner.desk, asked, bulk.Run(limit, rate=rate))
        for task_id, other in done.conflicts.items():
            log.warning("task %d is not replayed: task %d has its key", task_id, other, extra={"task": task_id})
        for task_id, why in done.refused.items():
            log.warning("task %d is not replayed: %s", task_id, why, extra={"task": task_id})
        warn_stale(done.stale)
        return [TaskId(task_id, created=False) for task_id in done.changed]

    def purge(
        self,
        older_than: Seconds,
        *,
        by: str | None = None,
        filter: str = "",
        rate: float | None = None,
        **marks: Unpack[Marks],
    ) -> int:
        """Remove those that died longer ago than ``older_than``, in batches; returns how many.

        Their outcome and audit are remembered. Tasks that wait for one of them to be retried end as failed. ``rate``:
        tasks a second at most. Raises ConfigError.
        """
        if older_than is None:
            raise ConfigError("purge wants an age: older_than, in seconds or as a timedelta")
        wanted = self._filter(filter, {"older_than": older_than, **marks})
        with acting_as(by):
            return bulk.purge(self._owner.desk, wanted, bulk.Run(rate=rate)).size

    def metrics(self) -> DeadLetterMetrics:
        """How many there are, by kind too, and how old the oldest is."""
        database = self._owner.database
        with database.read() as tx:
            found, now = dead_letters.metrics(tx), database.now()
        age = span(None if found.oldest is None else max(0, now - found.oldest))
        return DeadLetterMetrics(found.count, age, found.kinds)

    def audit(self, task_id: int | None = None, limit: int = 1000) -> Sequence[AuditEntry]:
        """Changes of a task, or replays, copies and purges of all dead letters: the newest entries, in the order they
        were made. Also of removed ones; ``jobs.audit()`` reads all that was changed. Raises ConfigError."""
        with self._owner.database.read() as tx:
            if task_id is not None:
                found = of_task(tx, check_id(task_id), check_whole(limit, "limit"))
            else:
                found = of_dead_letters(tx, check_whole(limit, "limit"))
        return [info(AuditEntry, record) for record in found]

    def _filter(self, text: str, given: Mapping[str, Any]) -> TaskFilter:
        return read_filter(self._owner.desk.database, text, given, ended=True)

    groups_async = in_thread(groups)
    get_async = in_thread(get)
    replay_async = in_thread(replay)
    replay_all_async = in_thread(replay_all)
    purge_async = in_thread(purge)
    metrics_async = in_thread(metrics)
    audit_async = in_thread(audit)
    list_async = in_thread(list)


def warn_left(left: Mapping[int, Other]) -> None:
    """Log the tasks that were not revived because another task has their key."""
    for task_id, other in left.items():
        text = "task %d is not revived: task %d has its key %r"
        log.warning(text, task_id, other.id, other.key, extra={"task": task_id})


def warn_stale(stale: Stale) -> None:
    """Log the tasks that ran on how a task had ended that runs again: the first of them each, and how many others."""
    for task_id in stale.ids[:_SAID]:
        log.warning("it ran on the old end of a task that runs again: rerun it", extra={"task": task_id})
    more = len(stale.ids) - _SAID
    if more > 0 or stale.cut:
        log.warning("%s; %d have no line of their own", told(stale), max(more, 0))
