"""Dead letters: tasks that failed for good, kept with their lineage. Finding, counting and purging them."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from scheduler.errors import InvalidTransitionError
from scheduler.model.state import DEAD, TaskState
from scheduler.model.task_filter import SINCE, TaskFilter, Term, in_states, only
from scheduler.store.broken_rows import options_of
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import ended_as
from scheduler.store.read.choose import chosen_tasks
from scheduler.store.read.paging import BIGGEST
from scheduler.store.read.tasks import TaskRecord, errors_of, get_task, get_tasks
from scheduler.store.read.where import where

BATCH = 500
_DEAD = ended_as(DEAD, "t")


class CauseGroup(NamedTuple):
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


class DeadLetterFigures(msgspec.Struct, frozen=True):
    """How many dead letters there are, when the oldest died (microseconds; None: there is none), and how many by
    kind."""

    count: int
    oldest: int | None
    kinds: dict[str, int]


def letters(tx: Tx, wanted: TaskFilter) -> tuple[str, dict[str, Any]]:
    """The condition on ``t`` that it is a dead letter of this filter, and what that binds."""
    wanted = without_payload(tx, wanted)
    conditions, bound = where(wanted)
    if wanted.states is not None and TaskState.DEAD not in wanted.states:
        conditions.append("t.id IS NULL")
    if wanted.ids is not None:
        conditions.append(tx.dialect.among("t.id"))
        bound["ids"] = tx.dialect.bind_ids(sorted(wanted.ids))
    ages = {"since": max, "before": min}
    for how, tightest in ages.items():
        if found := [int(term.values[0]) for term in wanted.of("ended") if term.how == how and not term.exclude]:
            bound[f"ended_{how}"] = tightest(found)
    since = ":ended_since" if "ended_since" in bound else "0"
    dead = ended_as(DEAD, "t", since=since, before=":ended_before" if "ended_before" in bound else None)
    return " AND ".join([dead, *conditions]), bound


def without_payload(tx: Tx, wanted: TaskFilter) -> TaskFilter:
    """The filter that names the dead letters whose payloads fit, if payloads are asked for; else the same."""
    if not wanted.of("payload"):
        return wanted
    dead, ids, below = wanted.also(in_states([TaskState.DEAD])), list[int](), BIGGEST
    while below:
        page, more = chosen_tasks(tx, dead, below, BATCH)
        ids += [row.id for row in page]
        below = more or 0
    return TaskFilter((*(term for term in wanted.terms if term.field != "payload"), only("id", *ids)), wanted.up_to)


def find(tx: Tx, wanted: TaskFilter, limit: int) -> list[TaskRecord]:
    """Dead letters, those that died last first."""
    where, bound = letters(tx, wanted)
    rows = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE {where} ORDER BY t.state DESC, t.finished_at DESC, t.id DESC "
        "LIMIT :limit",
        **(bound | {"limit": limit}),
    )
    return get_tasks(tx, [row[0] for row in rows])


def newest(tx: Tx, wanted: TaskFilter, number: int) -> TaskFilter | None:
    """The filter among the ``number`` dead letters that died last in the time it asks for, and those of the same
    instant. None: there are no more, or the filter is by a field that only few tasks share."""
    if any(term.plain for field in ("key", "correlation", "subject") for term in wanted.of(field)):
        return None
    where, bound = letters(tx, TaskFilter(tuple(wanted.of("ended"))))
    # No column but those of the index: it is not worth reading the table for.
    first = tx.run(
        f"SELECT t.finished_at FROM schedd_tasks t WHERE {where} ORDER BY t.state DESC, t.finished_at DESC "
        f"LIMIT 2 OFFSET {number - 1}",
        **bound,
    ).fetchall()
    return wanted.also(Term("ended", (first[0][0],), how=SINCE)) if len(first) > 1 else None


def get(tx: Tx, task_id: int) -> TaskRecord:
    """One dead letter. Raises UnknownTaskError, InvalidTransitionError that names its state if it is none."""
    task = get_task(tx, task_id)
    if task.state is not TaskState.DEAD:
        raise not_dead(task_id, task.state)
    return task


def not_dead(task_id: int, state: TaskState) -> InvalidTransitionError:
    """The error for a task that is no dead letter."""
    return InvalidTransitionError(f"task {task_id} is {state}; it is no dead letter")


def groups(tx: Tx, wanted: TaskFilter, limit: int) -> list[CauseGroup]:
    """Dead letters by kind and fingerprint of the error, the largest group first."""
    where, bound = letters(tx, wanted)
    rows = tx.run(
        "SELECT t.kind, t.error_class, t.fingerprint, count(*) AS n, max(t.id) AS id, "
        f"min(t.finished_at) AS oldest, max(t.finished_at) AS newest FROM schedd_tasks t WHERE {where} "
        "GROUP BY t.kind, t.error_class, t.fingerprint ORDER BY n DESC, newest DESC, t.kind LIMIT :limit",
        **(bound | {"limit": limit}),
    ).fetchall()
    errors = errors_of(tx, [row.id for row in rows])
    runs = {str(row.name): _runs(row.name, row.options) for row in tx.run(_KINDS)} if rows else {}
    return [
        CauseGroup(
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


def metrics(tx: Tx) -> DeadLetterFigures:
    """Count and oldest of all, and counts by kind."""
    rows = tx.run(
        f"SELECT t.kind, count(*) AS n, min(t.finished_at) AS oldest FROM schedd_tasks t WHERE {_DEAD} "
        "GROUP BY t.kind ORDER BY t.kind"
    ).fetchall()
    return DeadLetterFigures(
        sum(r.n for r in rows), min((r.oldest for r in rows), default=None), {r.kind: r.n for r in rows}
    )


def oldest(tx: Tx) -> int | None:
    """When the oldest dead letter died (microseconds), None if there is none: one look into an index."""
    first = f"SELECT t.finished_at FROM schedd_tasks t WHERE {_DEAD} ORDER BY t.state, t.finished_at LIMIT 1"
    found = tx.run(first).scalar()
    return None if found is None else int(found)


def count(tx: Tx, wanted: TaskFilter) -> int:
    """How many there are."""
    where, bound = letters(tx, wanted)
    found = tx.run(f"SELECT count(*) FROM schedd_tasks t WHERE {where}", **bound)
    return int(found.scalar_one())
