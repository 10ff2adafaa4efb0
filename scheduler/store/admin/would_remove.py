"""Counts what retention would remove now, and changes nothing: ``schedctl gc --dry-run``.

Looks at a bounded number of rows of each sort, the oldest first, unless all are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scheduler.model.outcome import Lifetimes
from scheduler.model.state import DEAD, FAILED, SUCCESS, TaskState
from scheduler.ports import SECOND
from scheduler.store.admin import retention
from scheduler.store.admin.retention import Chosen, Removed
from scheduler.store.db.tx import Tx
from scheduler.store.durable import events
from scheduler.store.predicates import ended_as

LOOKED = 10_000  # expired rows of each sort that are looked at
_WINDOW = 100_000  # of the lowest ids that are passed where no index leads to what has expired
_ALL = 2**62
_SLACK = 600 * SECOND  # as much may ids and creation times be out of step
_COLUMNS = "id, kind, queue, key, state, finished_at, result, result_until, key_until, kept_until, spawned_by"
_HAS_RESULT_EXPIRED = f"t.result_until <= :now AND {retention.HAS_RESULT}"
_SUCCESSES = f"""
SELECT count(*) AS looked,
  sum(CASE WHEN NOT ({retention.OVER}) THEN 0 WHEN {retention.REMOVABLE} THEN 1 ELSE 0 END) AS tasks,
  sum(CASE WHEN ({retention.OVER}) OR NOT ({_HAS_RESULT_EXPIRED}) THEN 0 WHEN {retention.REMOVABLE} THEN 1 ELSE 0 END)
  AS results
FROM (SELECT {_COLUMNS} FROM schedd_tasks WHERE state = {SUCCESS} AND {{due}} LIMIT :most) t
"""
_NEVER_LOOKED_AT = _SUCCESSES.format(due="kept_until IS NULL AND finished_at < :first ORDER BY kept_until, finished_at")
_LOOKED_AT = _SUCCESSES.format(due="kept_until <= :now ORDER BY kept_until, finished_at")
# The sum keeps SQLite from the index of all successes, whose order is no help.
_OLD = f"FROM schedd_tasks WHERE id < :top AND state + 0 = {SUCCESS} AND finished_at < :before"
_DEFERRED = f"""
SELECT count(*) AS looked, sum(CASE WHEN NOT ({retention.OVER}) THEN 0 WHEN {retention.REMOVABLE} THEN 1 ELSE 0 END)
  AS tasks
FROM (SELECT {_COLUMNS} {_OLD} AND kept_until > :now LIMIT :most) t
"""
_SUCCEEDED_BEFORE = f"""
SELECT count(*) AS looked,
  sum(CASE WHEN NOT ({retention.SUCCEEDED_BEFORE} {{where}}) THEN 0 WHEN {retention.REMOVABLE} THEN 1 ELSE 0 END)
  AS tasks
FROM (SELECT {_COLUMNS} {_OLD} LIMIT :most) t
"""
_ENDED = f"""
SELECT count(*) AS looked, sum(CASE WHEN {retention.UNREFERENCED} {{where}} THEN 1 ELSE 0 END) AS tasks
FROM (SELECT id, kind, queue, spawned_by FROM schedd_tasks {{index}} WHERE {{ended}} LIMIT :most) t
"""
_OF_STATE = ended_as(":state", before=":before")
_BY_AGE = "ORDER BY state, finished_at"
_FAILED_TTL = (
    f"failed_ttl IS NOT NULL AND state >= {FAILED} AND state <= {DEAD} AND finished_at + failed_ttl <= :now "
    "ORDER BY finished_at + failed_ttl"
)


class _Seen(NamedTuple):
    tasks: int = 0  # rows of another sort, where that is counted
    results: int = 0
    cut: bool = False

    def plus(self, other: _Seen) -> _Seen:
        return _Seen(self.tasks + other.tasks, self.results + other.results, self.cut or other.cut)


def would_remove(tx: Tx, kept: Mapping[str, float], *, every: bool = False) -> Removed:
    """What removing everything that has expired would remove. ``more``: at least so much, since not all was looked at.

    ``kept``: seconds, as ``[retention]`` names them; ``every``: look at all.
    """
    spans = retention.spans(kept)
    most = _ALL if every else LOOKED
    seen = _successes(tx, spans, most).plus(_unsuccessful(tx, spans, most))
    outcomes = _number(tx, "outcomes", "removed_at", retention.NO_PARENT, most, tx.now - spans["outcomes"])
    old = _number(tx, "events", "emitted_at", events.UNAWAITED, most, tx.now - spans["events"])
    remembered = spans.get("audit", round(retention.AUDIT_RETENTION_S * SECOND))
    audited = _number(tx, "audit", "at", "1 = 1", most, tx.now - remembered)
    workers = tx.run(f"SELECT count(*) {retention.WORKERS}", before=tx.now - retention.WORKER_RETENTION).scalar_one()
    cut = seen.cut or outcomes.cut or old.cut or audited.cut
    return Removed(seen.tasks, seen.results, outcomes.tasks, int(workers), old.tasks, audited.tasks, cut)


def would_clean(tx: Tx, chosen: Chosen, *, every: bool = False) -> Removed:
    """The same of :func:`retention.clean`."""
    where, names = chosen.where()
    most, before = _ALL if every else LOOKED, tx.now - chosen.age
    seen = _Seen()
    if TaskState.SUCCESS in chosen.states:
        top, whole = _top(tx, before, every=every)
        sql = _SUCCEEDED_BEFORE.format(where=where)
        seen = _counted(tx, sql, most, now=tx.now, before=before, top=top, **names)
        seen = seen._replace(cut=seen.cut or not whole)
    for state in retention.UNSUCCESSFUL:
        if TaskState.from_code(state) in chosen.states:
            sql = _ENDED.format(where=where, index="", ended=f"{_OF_STATE} {_BY_AGE}")
            seen = seen.plus(_counted(tx, sql, most, state=state, before=before, **names))
    return Removed(seen.tasks, more=seen.cut)


def _successes(tx: Tx, spans: Mapping[str, int], most: int) -> _Seen:
    """In the order in which they are removed: those that no round has looked at, those that are to be looked at again,
    and those that a longer retention had put off."""
    before = tx.now - spans["success"]
    first = tx.now - min(spans["success"], spans.get("results", Lifetimes().result))
    seen = _counted(tx, _NEVER_LOOKED_AT, most, now=tx.now, before=before, first=first)
    seen = seen.plus(_counted(tx, _LOOKED_AT, most, now=tx.now, before=before))
    top, whole = _top(tx, before, every=most == _ALL)
    deferred = _counted(tx, _DEFERRED, most, now=tx.now, before=before, top=top)
    return seen.plus(deferred._replace(cut=deferred.cut or not whole))


def _unsuccessful(tx: Tx, spans: Mapping[str, int], most: int) -> _Seen:
    own = _ENDED.format(where="", index=tx.dialect.by_index(retention.BY_FAILED_TTL), ended=_FAILED_TTL)
    seen = _counted(tx, own, most, now=tx.now)
    for state, age in retention.ages(spans).items():
        usual = "AND failed_ttl IS NULL" if state in (FAILED, DEAD) else ""
        sql = _ENDED.format(where="", index="", ended=f"{_OF_STATE} {usual} {_BY_AGE}")
        seen = seen.plus(_counted(tx, sql, most, state=state, before=tx.now - age))
    return seen


def _top(tx: Tx, before: int, *, every: bool) -> tuple[int, bool]:
    """Below which id to look for successes that ended before then, and whether none is above it."""
    sql = "SELECT id FROM schedd_tasks ORDER BY id LIMIT 1 OFFSET :most"
    top = None if every else tx.run(sql, most=_WINDOW).scalar()
    if top is None:
        return _ALL, True
    created = tx.run("SELECT created_at FROM schedd_tasks WHERE id = :id", id=top).scalar_one()
    return top, created >= before + _SLACK


def _counted(tx: Tx, sql: str, most: int, **bound: int | str) -> _Seen:
    row = tx.run(sql, most=most, **bound).one()
    return _Seen(int(row.tasks or 0), int(getattr(row, "results", 0) or 0), row.looked >= most)


def _number(tx: Tx, table: str, at: str, unneeded: str, most: int, before: int) -> _Seen:
    """Rows from before this instant; ``unneeded``: a condition on the alias, which is the table's first letter."""
    sql = (
        f"SELECT count(*) AS looked, sum(CASE WHEN {unneeded} THEN 1 ELSE 0 END) AS tasks FROM "
        f"(SELECT * FROM schedd_{table} WHERE {at} < :before ORDER BY {at} LIMIT :most) {table[0]}"
    )
    return _counted(tx, sql, most, before=before)
