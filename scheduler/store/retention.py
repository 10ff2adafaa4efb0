"""Removing what has outlived its retention, in batches; of a removed task its outcome is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.ports import SECOND
from scheduler.store import checkpoints, events
from scheduler.store.dialect import Dialect, bind_rows, prepared
from scheduler.store.lookup import exists, is_parent, lives, same, state_of
from scheduler.store.outcomes import RESULT_TTL

BATCH = 500
AGAIN = 86_400 * SECOND  # until what is kept for one that failed is looked at again
WALK = 20_000  # ids that one review looks at
WORKER_ROWS = 7 * 86400 * SECOND  # how long a stopped or dead worker stays in the list


class Removed(NamedTuple):
    """How many went; ``results``: of tasks that stay. ``more``: call again."""

    tasks: int = 0
    results: int = 0
    outcomes: int = 0
    workers: int = 0
    events: int = 0
    more: bool = False

    def plus(self, other: Removed) -> Removed:
        """Both together; ``more`` is the other's."""
        return Removed(
            self.tasks + other.tasks,
            self.results + other.results,
            self.outcomes + other.outcomes,
            self.workers + other.workers,
            self.events + other.events,
            other.more,
        )


# A row lives until the latest of its retention, result lifetime and key retention, and while a child that has not
# ended, or the task that awaits it, refers to it, or the one that spawned it has not succeeded: it may be retried, and
# asks for it then. Its result lives until that lifetime is over, and likewise.
# So does a success whose child has ended, but not succeeded: it may be retried, too. Not one that the child did not
# wait for to succeed, which never starts then; and nothing else that ended, or a chain that failed went one by one.
_CHILDREN = f"FROM schedd_edges e WHERE {same('e.parent', 't.id')} AND {lives('e.child')}"
# In this order: SQLite looks from where the first of these conditions begins.
_WAITERS = f"FROM schedd_waits w WHERE {same('w.item', 't.id')} AND w.item > 0 AND {lives('w.task_id')}"
_UNNEEDED = (
    f"NOT {exists('e.parent', _CHILDREN)} AND NOT {exists('w.item', _WAITERS)} "
    f"AND NOT coalesce({state_of('t.spawned_by')} <> {st.SUCCESS}, false)"
)
_READERS = (
    f"FROM schedd_edges e WHERE {same('e.parent', 't.id')} AND e.ok % 2 = 1 AND {state_of('e.child')} > {st.SUCCESS}"
)
_WANTED = exists("e.parent", _READERS)
_UNWANTED = f"{_UNNEEDED} AND NOT {_WANTED}"
_OVER = (
    f"t.state = {st.SUCCESS} AND t.finished_at < :before AND coalesce(t.result_until, 0) <= :now "
    "AND coalesce(t.key_until, 0) <= :now"
)
# Successes are looked at once when the first of these times may have come, and then when the next one has: those that
# are kept for long are not walked again and again.
_SUCCESSES = f"""
SELECT t.id, t.finished_at, t.result_until, t.key_until, {_WANTED} AS wanted FROM schedd_tasks t
WHERE t.state = {st.SUCCESS} AND {{due}} AND {_UNNEEDED} LIMIT :batch
"""
# Whoever reads a result takes it for gone if this has been since its time was over, and it is not there. So of a task
# that returned nothing that time is forgotten.
_LOOK = """
UPDATE schedd_tasks SET kept_until = j.at, result_until = CASE
  WHEN result_until > :now OR result IS NOT NULL OR kept_until > result_until OR EXISTS
    (SELECT 1 FROM schedd_task_values v WHERE v.task_id = schedd_tasks.id AND v.name = 'result')
  THEN result_until END
FROM {rows} j WHERE schedd_tasks.id = j.id
"""
_NEVER_LOOKED_AT = _SUCCESSES.format(due="t.kept_until IS NULL AND t.finished_at < :before")
_LOOKED_AT = _SUCCESSES.format(due="t.kept_until <= :now")
_OTHERS = f"""
SELECT t.id FROM schedd_tasks t WHERE t.state = :state AND t.state >= 7 AND t.finished_at < :before AND {_UNNEEDED}
ORDER BY t.finished_at LIMIT :batch
"""
# What depends on a task may be retried for as long as it is there, and is judged by that task's outcome then: so an
# outcome lives until its own time is over and no edge leads from it any more.
_OUTCOMES = f"FROM schedd_outcomes o WHERE o.removed_at < :before AND NOT {is_parent('o.task_id')}"
_WORKERS = (
    "FROM schedd_workers WHERE state >= 2 AND heartbeat_at < :before AND NOT EXISTS "
    "(SELECT 1 FROM schedd_tasks t WHERE t.worker = schedd_workers.id AND t.state >= 4 AND t.state <= 5)"
)


def sweep(
    connection: sa.Connection, dialect: Dialect, now: int, retention: Mapping[str, float], batch: int = BATCH
) -> Removed:
    """Remove one batch of what is over. ``retention``: seconds by success, failed, outcomes, events."""
    kept = _spans(retention)
    successes = _successes(connection, dialect, now, kept["success"], batch)
    expired: list[tuple[int, int]] = []
    for state in (st.FAILED, st.DEAD, st.CANCELLED, st.SKIPPED):
        rows = connection.execute(
            prepared(f"{_OTHERS} {dialect.skip_locked}"),
            {"state": state, "before": now - kept["failed"], "batch": batch - len(expired)},
        )
        expired += [(row[0], state) for row in rows]
        if len(expired) >= batch:
            break
    full = len(expired) >= batch
    expired = _unneeded(connection, dialect, expired)
    remove(connection, dialect, expired, now)
    gone = connection.execute(
        prepared(
            f"DELETE FROM schedd_outcomes WHERE task_id IN (SELECT o.task_id {_OUTCOMES} "
            "ORDER BY o.removed_at LIMIT :batch) RETURNING task_id"
        ),
        {"before": now - kept["outcomes"], "batch": batch},
    ).fetchall()
    if gone:
        connection.execute(
            prepared(f"DELETE FROM schedd_audit WHERE task_id IN {dialect.ids()}"),
            {"ids": bind_rows([row[0] for row in gone])},
        )
    workers = connection.execute(prepared(f"DELETE {_WORKERS}"), {"before": now - WORKER_ROWS})
    if workers.rowcount:
        connection.execute(
            prepared("DELETE FROM schedd_worker_kinds WHERE worker NOT IN (SELECT id FROM schedd_workers)")
        )
    old = events.cleanup(connection, now - kept["events"], batch)
    more = successes.more or full or len(gone) >= batch or old >= batch
    return successes.plus(Removed(len(expired), 0, len(gone), workers.rowcount, old, more))


def _spans(retention: Mapping[str, float]) -> dict[str, int]:
    return {name: round(seconds * SECOND) for name, seconds in retention.items()}


def _successes(connection: sa.Connection, dialect: Dialect, now: int, kept: int, batch: int) -> Removed:
    """One batch of successes: remove those that are over, and the results that have expired of those that stay."""
    found: list[sa.Row[tuple[int, int, int | None, int | None, bool]]] = []
    bound = {"now": now, "before": now - min(kept, RESULT_TTL)}
    for sql in (_NEVER_LOOKED_AT, _LOOKED_AT):
        rows = connection.execute(prepared(f"{sql} {dialect.skip_locked}"), bound | {"batch": batch - len(found)})
        found += rows.fetchall()
        if len(found) >= batch:
            break
    unneeded = set(_unwanted(connection, dialect, [row.id for row in found if not row.wanted]))
    over: list[tuple[int, int]] = []
    stale: list[int] = []
    looks: list[tuple[int, int]] = []
    for row in found:
        result_until = row.result_until or 0
        until = max(result_until, row.key_until or 0, row.finished_at + kept + 1)
        if row.wanted:
            until = now + AGAIN
        elif row.id not in unneeded:
            continue
        elif until <= now:
            over.append((row.id, st.SUCCESS))
            continue
        elif result_until <= now:
            stale.append(row.id)
        looks.append((row.id, until if result_until <= now else result_until))
    remove(connection, dialect, over, now)
    if looks:
        look = _LOOK.format(rows=dialect.rows({"id": int, "at": int}))
        connection.execute(prepared(look), {"rows": bind_rows(looks), "now": now})
    return Removed(len(over), forget_results(connection, dialect, stale), more=len(found) >= batch)


def forget_results(connection: sa.Connection, dialect: Dialect, ids: Sequence[int]) -> int:
    """Delete the results of these tasks. Returns how many there were."""
    if not ids:
        return 0
    bound = {"ids": bind_rows(ids)}
    short = connection.execute(
        prepared(f"UPDATE schedd_tasks SET result = NULL WHERE id IN {dialect.ids()} AND result IS NOT NULL"), bound
    )
    long = connection.execute(
        prepared(f"DELETE FROM schedd_task_values WHERE task_id IN {dialect.ids()} AND name = 'result'"), bound
    )
    return short.rowcount + long.rowcount


def expire(connection: sa.Connection, dialect: Dialect, task_id: int, now: int) -> int:
    """Delete the result of this task if it has expired and nobody needs it. Never waits for a row."""
    rows = connection.execute(
        prepared(
            f"SELECT t.id FROM schedd_tasks t WHERE t.id = :id AND t.state = {st.SUCCESS} AND t.result_until <= :now "
            f"AND {_UNWANTED} {dialect.skip_locked}"
        ),
        {"id": task_id, "now": now},
    ).fetchall()
    unneeded = _unwanted(connection, dialect, [row[0] for row in rows])
    forgotten = forget_results(connection, dialect, unneeded)
    if forgotten:  # looked at, as by sweep(): see children.ends()
        looked_at = (
            "UPDATE schedd_tasks SET kept_until = :now WHERE id = :id AND coalesce(kept_until, 0) <= result_until"
        )
        connection.execute(prepared(looked_at), {"id": task_id, "now": now + 1})
    return forgotten


def review(
    connection: sa.Connection, dialect: Dialect, now: int, retention: Mapping[str, float], after: int
) -> tuple[Removed, int | None]:
    """Remove the successes with the next ids that are over by this retention, whenever they were to be looked at.

    Returns the id to go on from, None at the end. For a retention that is shorter than the one by which :func:`sweep`
    has put them off.
    """
    last = connection.execute(prepared("SELECT max(id) FROM schedd_tasks")).scalar() or 0
    rows = connection.execute(
        prepared(
            f"SELECT t.id FROM schedd_tasks t WHERE t.id > :after AND t.id <= :to AND {_OVER} AND {_UNWANTED} "
            f"LIMIT {BATCH} {dialect.skip_locked}"
        ),
        {"after": after, "to": after + WALK, "now": now, "before": now - _spans(retention)["success"]},
    ).fetchall()
    over = [(task_id, st.SUCCESS) for task_id in _unwanted(connection, dialect, [row[0] for row in rows])]
    remove(connection, dialect, over, now)
    if len(rows) >= BATCH and over:
        return Removed(len(over)), after  # there may be more among them
    return Removed(len(over)), after + WALK if after + WALK < last else None


def keeps_some(connection: sa.Connection, now: int) -> bool:
    """Whether successes were put off to be looked at later."""
    row = connection.execute(
        prepared(f"SELECT 1 FROM schedd_tasks WHERE state = {st.SUCCESS} AND kept_until > :now LIMIT 1"), {"now": now}
    )
    return row.first() is not None


def would_remove(connection: sa.Connection, now: int, retention: Mapping[str, float]) -> Removed:
    """What removing all of it now would remove. Reads everything, changes nothing."""
    kept = _spans(retention)
    bound = {"now": now, "before": now - kept["success"]}

    def count(sql: str, **more: int) -> int:
        return int(connection.execute(prepared(f"SELECT count(*) {sql}"), bound | more).scalar_one())

    successes = count(f"FROM schedd_tasks t WHERE {_OVER} AND {_UNWANTED}")
    failed = count(
        f"FROM schedd_tasks t WHERE t.state >= 7 AND t.finished_at < :before AND {_UNNEEDED}",
        before=now - kept["failed"],
    )
    results = count(
        f"FROM schedd_tasks t WHERE t.state = {st.SUCCESS} AND t.result_until <= :now AND NOT ({_OVER}) "
        "AND (t.result IS NOT NULL OR EXISTS (SELECT 1 FROM schedd_task_values v WHERE v.task_id = t.id "
        f"AND v.name = 'result')) AND {_UNWANTED}"
    )
    outcomes = count(_OUTCOMES, before=now - kept["outcomes"])
    workers = count(_WORKERS, before=now - WORKER_ROWS)
    return Removed(successes + failed, results, outcomes, workers, events.count_old(connection, now - kept["events"]))


def _unneeded(connection: sa.Connection, dialect: Dialect, expired: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without those that have got a child since the statement that found and locked them began; now none can."""
    free = set(_still(connection, dialect, [task_id for task_id, _ in expired], _UNNEEDED))
    return [(task_id, state) for task_id, state in expired if task_id in free]


def _unwanted(connection: sa.Connection, dialect: Dialect, ids: list[int]) -> list[int]:
    """The same of successes."""
    return _still(connection, dialect, ids, _UNWANTED)


def _still(connection: sa.Connection, dialect: Dialect, ids: list[int], condition: str) -> list[int]:
    if not ids or not dialect.skip_locked:
        return ids
    sql = prepared(f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {dialect.ids()} AND {condition}")
    return [row[0] for row in connection.execute(sql, {"ids": bind_rows(ids)})]


def remove(connection: sa.Connection, dialect: Dialect, expired: Sequence[tuple[int, int]], now: int) -> None:
    """Delete ended tasks, rows (id, state), with all that belongs to them; their outcomes are remembered."""
    if not expired:
        return
    rows = dialect.rows({"id": int, "state": int})
    connection.execute(
        prepared(
            "INSERT INTO schedd_outcomes (task_id, state, removed_at) "
            f"SELECT id, state, :now FROM {rows} j WHERE true ON CONFLICT (task_id) DO NOTHING"
        ),
        {"rows": bind_rows(expired), "now": now},
    )
    ids = [task_id for task_id, _ in expired]
    checkpoints.forget(connection, dialect, ids)
    bound = {"ids": bind_rows(ids)}
    for sql in (
        f"DELETE FROM schedd_edges WHERE child IN {dialect.ids()}",
        f"DELETE FROM schedd_task_values WHERE task_id IN {dialect.ids()}",
        f"DELETE FROM schedd_attempts WHERE task_id IN {dialect.ids()}",
        f"DELETE FROM schedd_tasks WHERE id IN {dialect.ids()}",
    ):
        connection.execute(prepared(sql), bound)
