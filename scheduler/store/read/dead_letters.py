"""Dead letters: tasks that failed for good, kept with their lineage. Finding, counting and purging them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from scheduler.errors import InvalidTransitionError
from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.model.texts import rfc3339
from scheduler.store.broken_rows import options_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import ended_as
from scheduler.store.read.paging import as_id
from scheduler.store.read.tasks import TaskRecord, get_task, get_tasks

BATCH = 500
_DEAD = ended_as(st.DEAD, "t")


class Filter(NamedTuple):
    """Which dead letters. ``before`` and ``after``: died before, or since, this instant (microseconds).

    ``correlation`` also means the task that has this id and no correlation of its own; ``message_type`` is the kind
    where none was given.
    """

    kind: str | None = None
    error_class: str | None = None
    fingerprint: str | None = None
    before: int | None = None
    after: int | None = None
    key: str | None = None
    correlation: str | None = None
    subject: str | None = None
    message_type: str | None = None

    def where(self) -> tuple[str, dict[str, Any]]:
        """The condition on ``t``, and what it binds."""
        parts = {
            "kind": "t.kind = :kind",
            "error_class": "t.error_class = :error_class",
            "fingerprint": "t.fingerprint = :fingerprint",
            "key": "t.key = :key",
            "correlation": "(t.correlation = :correlation OR (t.correlation IS NULL AND t.id = :own))",
            "subject": "t.subject = :subject",
            "message_type": "(t.message_type = :message_type OR (t.message_type IS NULL AND t.kind = :message_type))",
        }
        bound: dict[str, Any] = {name: value for name, value in self._asdict().items() if value is not None}
        since = "0" if self.after is None else ":after"
        dead = ended_as(st.DEAD, "t", since=since, before=None if self.before is None else ":before")
        where = " AND ".join([dead, *(parts[name] for name in bound if name in parts)])
        if self.correlation is not None:
            bound["own"] = as_id(self.correlation)
        return where, bound

    def chosen(self) -> dict[str, Any]:
        """What was asked for, as the audit records it."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return {name: rfc3339(value) if name in ("before", "after") else value for name, value in given.items()}


class Group(NamedTuple):
    """Dead letters with one cause, ``number`` of them. ``runs``: what failed, such as ``EmailTask.run``; ``id`` and
    ``error`` are those of the newest task; ``oldest`` and ``newest``: when they died (microseconds)."""

    number: int
    kind: str
    error_class: str | None
    fingerprint: str | None
    runs: str
    id: int
    error: str | None
    oldest: int
    newest: int


class Metrics(msgspec.Struct, frozen=True):
    """How many dead letters there are, when the oldest died (microseconds; None: there is none), and how many by
    kind."""

    count: int
    oldest: int | None
    kinds: dict[str, int]


def find(tx: Tx, wanted: Filter, limit: int) -> list[TaskRecord]:
    """Dead letters, those that died last first."""
    where, bound = wanted.where()
    rows = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.state DESC, t.finished_at DESC, t.id DESC "
        "LIMIT :limit",
        **(bound | {"limit": limit}),
    )
    return get_tasks(tx, [row[0] for row in rows])


def newest(tx: Tx, wanted: Filter, number: int) -> Filter | None:
    """The filter among the ``number`` dead letters that died last in the time it asks for, and those of the same
    instant. None: there are no more, or the filter is by a field that only few tasks share."""
    if (wanted.key, wanted.correlation, wanted.subject) != (None, None, None):
        return None
    where, bound = Filter(before=wanted.before, after=wanted.after).where()
    # No column but those of the index: it is not worth reading the table for.
    first = tx.run(
        f"SELECT t.finished_at FROM schedd_tasks t WHERE {where} ORDER BY t.state DESC, t.finished_at DESC "
        f"LIMIT 2 OFFSET {number - 1}",
        **bound,
    ).fetchall()
    return wanted._replace(after=first[0][0]) if len(first) > 1 else None


def get(tx: Tx, task_id: int) -> TaskRecord:
    """One dead letter. Raises UnknownTaskError, InvalidTransitionError that names its state if it is none."""
    task = get_task(tx, task_id)
    if task.state is not TaskState.DEAD:
        raise not_dead(task_id, task.state)
    return task


def not_dead(task_id: int, state: TaskState) -> InvalidTransitionError:
    """The error for a task that is no dead letter."""
    return InvalidTransitionError(f"task {task_id} is {state}; it is no dead letter")


def groups(tx: Tx, wanted: Filter, limit: int) -> list[Group]:
    """Dead letters by kind and fingerprint of the error, the largest group first."""
    where, bound = wanted.where()
    rows = tx.run(
        "SELECT t.kind, t.error_class, t.fingerprint, count(*) AS n, max(t.id) AS id, "
        f"min(t.finished_at) AS oldest, max(t.finished_at) AS newest FROM schedd_tasks t WHERE {where} "
        "GROUP BY t.kind, t.error_class, t.fingerprint ORDER BY n DESC, newest DESC, t.kind LIMIT :limit",
        **(bound | {"limit": limit}),
    ).fetchall()
    errors = {
        row.id: row.error
        for row in tx.run(
            f"SELECT id, error FROM schedd_tasks WHERE id IN {tx.dialect.ids()}",
            ids=bind_rows([row.id for row in rows]),
        )
    }
    runs = {str(row.name): _runs(row.name, row.options) for row in tx.run(_KINDS)} if rows else {}
    return [
        Group(
            r.n,
            r.kind,
            r.error_class,
            r.fingerprint,
            runs.get(r.kind, str(r.kind)),
            r.id,
            errors[r.id],
            r.oldest,
            r.newest,
        )
        for r in rows
    ]


_KINDS = "SELECT name, options FROM schedd_kinds"


def _runs(kind: str, options: str) -> str:
    return str(options_of(options).get("runs") or kind)


def metrics(tx: Tx) -> Metrics:
    """Count and oldest of all, and counts by kind."""
    rows = tx.run(
        f"SELECT t.kind, count(*) AS n, min(t.finished_at) AS oldest FROM schedd_tasks t WHERE {_DEAD} "
        "GROUP BY t.kind ORDER BY t.kind"
    ).fetchall()
    return Metrics(sum(r.n for r in rows), min((r.oldest for r in rows), default=None), {r.kind: r.n for r in rows})


def oldest(tx: Tx) -> int | None:
    """When the oldest dead letter died (microseconds), None if there is none: one look into an index."""
    first = f"SELECT t.finished_at FROM schedd_tasks t WHERE {_DEAD} ORDER BY t.state, t.finished_at LIMIT 1"
    found = tx.run(first).scalar()
    return None if found is None else int(found)


def count(tx: Tx, wanted: Filter) -> int:
    """How many there are."""
    where, bound = wanted.where()
    found = tx.run(f"SELECT count(*) FROM schedd_tasks t WHERE {where}", **bound)
    return int(found.scalar_one())
