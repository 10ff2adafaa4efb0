"""Removes what has outlived its retention, in batches; keeps the outcomes of removed tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.actor import in_bulk
from scheduler.model.defaults import RETENTION
from scheduler.model.outcome import Lifetimes
from scheduler.model.state import CANCELLED, DEAD, FAILED, SKIPPED, SUCCESS, TaskState
from scheduler.model.texts import ranges
from scheduler.model.worker_states import STOPPED
from scheduler.ports import SECOND
from scheduler.store import audit, bulks
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints, events
from scheduler.store.predicates import ended_as, exists, held, is_live, is_parent, same, state_of
from scheduler.store.tasks.keys import completed_since

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.db.database import Database

BATCH = 500
BY_FAILED_TTL = "ix_schedd_tasks_failed_ttl"
UNSUCCESSFUL = (FAILED, DEAD, CANCELLED, SKIPPED)
FAILED_RECHECK = 86_400 * SECOND  # until a success that a failed task still needs is checked again
RESCAN_BATCH = 20_000  # ids that one rescan reads
AUDIT_RETENTION_S = RETENTION["audit"]
WORKER_RETENTION = 7 * 86400 * SECOND  # how long a stopped or dead worker stays in the list


class Chosen(NamedTuple):
    """Which ended tasks to remove by age (microseconds), whatever their retention."""

    states: frozenset[TaskState]
    age: int
    kind: str | None = None
    queue: str | None = None

    def where(self) -> tuple[str, dict[str, str]]:
        """The condition on kind and queue, and what it binds."""
        bound = {name: value for name, value in (("kind", self.kind), ("queue", self.queue)) if value is not None}
        return " ".join(f"AND t.{name} = :{name}" for name in bound), bound

    def shown(self) -> dict[str, object]:
        """As the audit records it."""
        states = sorted(state.value for state in self.states)
        return {"status": states, "older_than": self.age / SECOND, "kind": self.kind, "queue": self.queue}


class Removed(NamedTuple):
    """How many rows were removed; ``results``: of tasks that stay. ``more``: call again."""

    tasks: int = 0
    results: int = 0
    outcomes: int = 0
    workers: int = 0
    events: int = 0
    audit: int = 0
    more: bool = False

    def plus(self, other: Removed) -> Removed:
        """Both together; ``more`` is the other's."""
        return Removed(
            self.tasks + other.tasks,
            self.results + other.results,
            self.outcomes + other.outcomes,
            self.workers + other.workers,
            self.events + other.events,
            self.audit + other.audit,
            other.more,
        )


# A row lives until the latest of its retention, result lifetime and key retention, and while a child that has not
# ended, or the task that awaits it, refers to it, or the one that spawned it has not succeeded: it may be retried, and
# asks for it then. Its result lives until that lifetime is over, and likewise.
# So does a success whose child has ended, but not succeeded: it may be retried, too. Not one that the child did not
# wait for to succeed, which never starts then; and nothing else that ended, or a chain that failed went one by one.
_CHILDREN = f"FROM schedd_edges e WHERE {same('e.parent', 't.id')} AND {is_live('e.child')}"
# In this order: SQLite looks from where the first of these conditions begins.
_WAITERS = f"FROM schedd_waits w WHERE {same('w.item', 't.id')} AND w.item > 0 AND {is_live('w.task_id')}"
UNREFERENCED = (
    f"NOT {exists('e.parent', _CHILDREN)} AND NOT {exists('w.item', _WAITERS)} "
    f"AND NOT coalesce({state_of('t.spawned_by')} <> {SUCCESS}, false)"
)
_READERS = (
    f"FROM schedd_edges e WHERE {same('e.parent', 't.id')} AND e.ok % 2 = 1 AND {state_of('e.child')} > {SUCCESS}"
)
# What has completed under a key is remembered while an earlier failure with that key may be retried or replayed: see
# keys.py.
_RETRIABLE = (
    f"FROM schedd_tasks d WHERE d.kind = t.kind AND d.key = t.key AND d.state >= {FAILED} AND {completed_since('d')}"
)
_STILL_READABLE = f"({exists('e.parent', _READERS)} OR t.key IS NOT NULL AND {exists('d.key', _RETRIABLE)})"
REMOVABLE = f"{UNREFERENCED} AND NOT {_STILL_READABLE}"
HAS_RESULT = (
    "(t.result IS NOT NULL OR EXISTS (SELECT 1 FROM schedd_task_values v WHERE v.task_id = t.id AND v.name = 'result'))"
)
OVER = (
    f"t.state = {SUCCESS} AND t.finished_at < :before "
    f"AND (coalesce(t.result_until, 0) <= :now OR NOT {HAS_RESULT}) "
    "AND coalesce(t.key_until, 0) <= :now"
)
# A success is checked when the first of these times may have come, and then at the next one: successes with a long
# retention are not read in every round.
_SUCCESSES = f"""
SELECT t.id, t.finished_at, t.result_until, t.key_until, {_STILL_READABLE} AS wanted, {HAS_RESULT} AS has_result
FROM schedd_tasks t
WHERE t.state = {SUCCESS} AND {{due}} AND {UNREFERENCED} LIMIT :batch
"""
# A reader takes a missing result for expired once this time is over. So the time is cleared of a task that returned
# nothing.
_LOOK = """
UPDATE schedd_tasks SET kept_until = j.at, result_until = CASE
  WHEN result IS NOT NULL OR kept_until > result_until OR EXISTS
    (SELECT 1 FROM schedd_task_values v WHERE v.task_id = schedd_tasks.id AND v.name = 'result')
  THEN result_until END
FROM {rows} j WHERE schedd_tasks.id = j.id
"""
_NEVER_LOOKED_AT = _SUCCESSES.format(due="t.kept_until IS NULL AND t.finished_at < :before")
_LOOKED_AT = _SUCCESSES.format(due="t.kept_until <= :now")
_OTHERS = f"""
SELECT t.id FROM schedd_tasks t WHERE {ended_as(":state", "t", before=":before")} AND {UNREFERENCED}
{{chosen}} ORDER BY t.state, t.finished_at LIMIT :batch
"""
# Failed and dead tasks of kinds with a failed_ttl go by that alone.
_FAILED_TTL = f"""
SELECT t.id, t.state FROM schedd_tasks t {{index}} WHERE t.failed_ttl IS NOT NULL AND t.state >= {FAILED}
AND t.state <= {DEAD} AND t.finished_at + t.failed_ttl <= :now AND {UNREFERENCED}
ORDER BY t.finished_at + t.failed_ttl LIMIT :batch
"""
# By age, on demand: a result goes with its task, a key that is not free yet stays.
SUCCEEDED_BEFORE = f"t.state = {SUCCESS} AND t.finished_at < :before AND coalesce(t.key_until, 0) <= :now"
# States with a retention of their own, where it is set.
_OWN = {DEAD: "dead", CANCELLED: "cancelled", SKIPPED: "skipped"}
# What depends on a task may be retried for as long as it is there, and is judged by that task's outcome then: so an
# outcome lives until its own time is over and no edge leads from it any more.
NO_PARENT = f"NOT {is_parent('o.task_id')}"
_OUTCOMES = f"FROM schedd_outcomes o WHERE o.removed_at < :before AND {NO_PARENT}"
WORKERS = (
    f"FROM schedd_workers WHERE state >= {STOPPED} AND heartbeat_at < :before AND NOT EXISTS "
    f"(SELECT 1 FROM schedd_tasks t WHERE t.worker = schedd_workers.id AND {held('t')})"
)


def purge_batch(tx: Tx, retention: Mapping[str, float], batch: int = BATCH) -> Removed:
    """Remove one batch of expired rows.

    ``retention``: seconds by success, failed, outcomes, events, results, audit; dead, cancelled and skipped, where they
    are not kept as long as failed.
    """
    kept = spans(retention)
    first = min(kept["success"], kept.get("results", Lifetimes().result))
    successes = _successes(tx, kept["success"], first, batch)
    found, ended = _remove_ended(tx, ages(kept), batch)
    gone = tx.run(
        f"DELETE FROM schedd_outcomes WHERE task_id IN (SELECT o.task_id {_OUTCOMES} "
        "ORDER BY o.removed_at LIMIT :batch) RETURNING task_id",
        before=tx.now - kept["outcomes"],
        batch=batch,
    ).fetchall()
    workers = tx.run(f"DELETE {WORKERS}", before=tx.now - WORKER_RETENTION)
    if workers.rowcount:
        tx.run("DELETE FROM schedd_worker_kinds WHERE worker NOT IN (SELECT id FROM schedd_workers)")
    old = events.cleanup(tx, tx.now - kept["events"], batch)
    remembered = tx.now - kept.get("audit", round(AUDIT_RETENTION_S * SECOND))
    audited = audit.clean(tx, remembered, batch)
    if audited:  # bulks are as old as their entries in the audit
        bulks.clean(tx, remembered, batch)
    more = successes.more or max(found, len(gone), old, audited) >= batch
    return successes.plus(Removed(len(ended), 0, len(gone), workers.rowcount, old, audited, more))


def ages(kept: Mapping[str, int]) -> dict[int, int]:
    """How long tasks of the unsuccessful states stay (microseconds)."""
    return {state: kept.get(_OWN.get(state, "failed"), kept["failed"]) for state in UNSUCCESSFUL}


def _remove_ended(
    tx: Tx, by_state: Mapping[int, int], batch: int = BATCH, chosen: Chosen | None = None
) -> tuple[int, list[int]]:
    """Remove a batch of unneeded unsuccessful tasks that ended longer ago than their state's age (microseconds).

    Returns how many were found, and the ids of those removed: fewer found than ``batch`` means that there are no more.
    """
    where, names = ("", {}) if chosen is None else chosen.where()
    expired: list[tuple[int, int]] = []
    if chosen is None:
        ttl = _FAILED_TTL.format(index=tx.dialect.by_index(BY_FAILED_TTL))
        own = tx.run(f"{ttl} {tx.dialect.skip_locked}", now=tx.now, batch=batch)
        expired += [(row[0], row[1]) for row in own]
    for state, age in by_state.items():
        if len(expired) < batch:
            others = "AND t.failed_ttl IS NULL" if chosen is None and state in (FAILED, DEAD) else where
            sql = f"{_OTHERS.format(chosen=others)} {tx.dialect.skip_locked}"
            bound = {"state": state, "before": tx.now - age, "batch": batch - len(expired), **names}
            expired += [(row[0], state) for row in tx.run(sql, **bound)]
    unneeded = _unneeded(tx, expired)
    remove(tx, unneeded)
    return len(expired), [task_id for task_id, _ in unneeded]


def clean(database: Database, chosen: Chosen) -> int:
    """Remove ended tasks by age, batch by batch, each recorded in the audit; returns how many.

    A success goes with its result, but not before its key is free; a task that others need stays.
    """
    removed = 0
    with in_bulk(audit.new_bulk(), chosen.shown()):
        after = 0 if TaskState.SUCCESS in chosen.states else None
        while after is not None:
            with database.write() as tx:
                ids, after = _scan(tx, after, SUCCEEDED_BEFORE, chosen)
                _record(tx, ids)
            removed += len(ids)
        by_state = {code: chosen.age for code in UNSUCCESSFUL if TaskState.from_code(code) in chosen.states}
        found = BATCH if by_state else 0
        while found >= BATCH:
            with database.write() as tx:
                tx.now = tx.now
                found, ids = _remove_ended(tx, by_state, chosen=chosen)
                _record(tx, ids)
            removed += len(ids)
            if not ids:
                break
    return removed


def _record(tx: Tx, ids: Collection[int]) -> None:
    if ids:
        audit.record(tx, "cleanup", subject="tasks", removed=len(ids), ids=ranges(ids))


def spans(retention: Mapping[str, float]) -> dict[str, int]:
    """The same in microseconds."""
    return {name: round(seconds * SECOND) for name, seconds in retention.items()}


def _successes(tx: Tx, kept: int, first: int, batch: int) -> Removed:
    """One batch of successes: remove those that are over, and the results that have expired of those that stay.

    ``first``: how old they are when they are looked at first.
    """
    found: list[sa.Row[tuple[int, int, int | None, int | None, bool]]] = []
    bound = {"now": tx.now, "before": tx.now - first}
    for sql in (_NEVER_LOOKED_AT, _LOOKED_AT):
        rows = tx.run(f"{sql} {tx.dialect.skip_locked}", **(bound | {"batch": batch - len(found)}))
        found += rows.fetchall()
        if len(found) >= batch:
            break
    unneeded = set(_unwanted(tx, [row.id for row in found if not row.wanted]))
    over: list[tuple[int, int]] = []
    stale: list[int] = []
    looks: list[tuple[int, int]] = []
    for row in found:
        result_until = row.result_until or 0 if row.has_result else 0
        until = max(result_until, row.key_until or 0, row.finished_at + kept + 1)
        if row.wanted:
            until = tx.now + FAILED_RECHECK
        elif row.id not in unneeded:
            continue
        elif until <= tx.now:
            over.append((row.id, SUCCESS))
            continue
        elif result_until <= tx.now:
            stale.append(row.id)
        looks.append((row.id, until if result_until <= tx.now else result_until))
    remove(tx, over)
    if looks:
        look = _LOOK.format(rows=tx.dialect.rows({"id": int, "at": int}))
        tx.run(look, rows=bind_rows(looks), now=tx.now)
    return Removed(len(over), forget_results(tx, stale), more=len(found) >= batch)


def forget_results(tx: Tx, ids: Sequence[int]) -> int:
    """Delete the results of these tasks. Returns how many there were."""
    if not ids:
        return 0
    bound = {"ids": bind_rows(ids)}
    short = tx.run(
        f"UPDATE schedd_tasks SET result = NULL WHERE id IN {tx.dialect.ids()} AND result IS NOT NULL", **bound
    )
    long = tx.run(f"DELETE FROM schedd_task_values WHERE task_id IN {tx.dialect.ids()} AND name = 'result'", **bound)
    return short.rowcount + long.rowcount


def expire(tx: Tx, task_id: int) -> int:
    """Delete the task's result if it has expired and no task needs it. Never waits for a row."""
    rows = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE t.id = :id AND t.state = {SUCCESS} AND t.result_until <= :now "
        f"AND {REMOVABLE} {tx.dialect.skip_locked}",
        id=task_id,
        now=tx.now,
    ).fetchall()
    unneeded = _unwanted(tx, [row[0] for row in rows])
    forgotten = forget_results(tx, unneeded)
    if forgotten:  # looked at, as by sweep(): see children.ends()
        looked_at = (
            "UPDATE schedd_tasks SET kept_until = :now WHERE id = :id AND coalesce(kept_until, 0) <= result_until"
        )
        tx.run(looked_at, id=task_id, now=tx.now + 1)
    return forgotten


def rescan(tx: Tx, retention: Mapping[str, float], after: int) -> tuple[Removed, int | None]:
    """Remove expired successes among the next ids, even those whose next check is later.

    Needed after the retention was made shorter: :func:`purge_batch` scheduled the checks by the longer one. Returns the
    id to continue from, None at the end.
    """
    every = Chosen(frozenset({TaskState.SUCCESS}), spans(retention)["success"])
    removed, after_this = _scan(tx, after, OVER, every)
    return Removed(len(removed)), after_this


def _scan(tx: Tx, after: int, condition: str, chosen: Chosen) -> tuple[list[int], int | None]:
    """Remove the unneeded successes that the condition holds for among the next ids behind ``after``.

    Returns their ids, and the id to continue from: None at the end.
    """
    where, names = chosen.where()
    last = tx.run("SELECT max(id) FROM schedd_tasks").scalar() or 0
    rows = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE t.id > :after AND t.id <= :to AND {condition} AND {REMOVABLE} "
        f"{where} LIMIT {BATCH} {tx.dialect.skip_locked}",
        after=after,
        to=after + RESCAN_BATCH,
        now=tx.now,
        before=tx.now - chosen.age,
        **names,
    ).fetchall()
    ids = _unwanted(tx, [row[0] for row in rows])
    remove(tx, [(task_id, SUCCESS) for task_id in ids])
    if len(rows) >= BATCH and ids:
        return ids, after  # there may be more among them
    return ids, after + RESCAN_BATCH if after + RESCAN_BATCH < last else None


def has_deferred(tx: Tx) -> bool:
    """Whether the check of some successes was deferred."""
    row = tx.run(f"SELECT 1 FROM schedd_tasks WHERE state = {SUCCESS} AND kept_until > :now LIMIT 1", now=tx.now)
    return row.first() is not None


def _unneeded(tx: Tx, expired: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop tasks that got a child since the statement that locked them began; now none can get one."""
    free = set(_still(tx, [task_id for task_id, _ in expired], UNREFERENCED))
    return [(task_id, state) for task_id, state in expired if task_id in free]


def _unwanted(tx: Tx, ids: list[int]) -> list[int]:
    """The same of successes."""
    return _still(tx, ids, REMOVABLE)


def _still(tx: Tx, ids: list[int], condition: str) -> list[int]:
    if not ids or not tx.dialect.skip_locked:
        return ids
    sql = f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()} AND {condition}"
    return [row[0] for row in tx.run(sql, ids=bind_rows(ids))]


def remove(tx: Tx, expired: Sequence[tuple[int, int]]) -> None:
    """Delete ended tasks, rows (id, state), with all that belongs to them; their outcomes are remembered."""
    if not expired:
        return
    rows = tx.dialect.rows({"id": int, "state": int})
    tx.run(
        "INSERT INTO schedd_outcomes (task_id, state, removed_at, schedule, slot) "
        f"SELECT j.id, j.state, :now, t.schedule, t.slot FROM {rows} j LEFT JOIN schedd_tasks t ON t.id = j.id "
        "WHERE true ON CONFLICT (task_id) DO NOTHING",
        rows=bind_rows(expired),
        now=tx.now,
    )
    ids = [task_id for task_id, _ in expired]
    checkpoints.forget(tx, ids)
    bound = {"ids": bind_rows(ids)}
    for sql in (
        f"DELETE FROM schedd_edges WHERE child IN {tx.dialect.ids()}",
        f"DELETE FROM schedd_task_values WHERE task_id IN {tx.dialect.ids()}",
        f"DELETE FROM schedd_attempts WHERE task_id IN {tx.dialect.ids()}",
        f"DELETE FROM schedd_placements WHERE task_id IN {tx.dialect.ids()}",
        f"DELETE FROM schedd_tasks WHERE id IN {tx.dialect.ids()}",
    ):
        tx.run(sql, **bound)
