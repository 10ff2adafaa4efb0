"""What suspended tasks wait for, and waking them once it has happened.

A wait has the name of the checkpoint to come. Its head (``item`` 0) names the event, or says that it is for tasks; each
task has a row of its own. The wait is over when none of its rows is open. The transaction that emits the event or ends
the task closes the rows and makes the waiter due. The one that suspends the waiter checks whether that has happened.
Neither waits for the other: where one held the waiter's row, :func:`wake_missed` finds the waiter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.state import FIRST_TERMINAL, RETRY, SUSPENDED
from scheduler.store.db.dialect import Dialect, bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import exists

BATCH = 1000
OPEN, MET, TASKS = 0, 1, 2  # of ``met``; TASKS: a head whose rows tell
OVERLOOKED = "schedd_overlooked"  # in a connection's info: check for missed wake-ups soon, two ended one wait at once
# Its max_delay counts from now on, not from when it would have been due.
_DUE = "run_at = :now, check_at = CASE WHEN check_at > :now THEN :now ELSE check_at END"
_OVER = "NOT EXISTS (SELECT 1 FROM schedd_waits u WHERE u.task_id = w.task_id AND u.name = w.name AND u.met = 0)"


class StoredWait(NamedTuple):
    """The head of a wait; ``event`` None: for tasks. Times are microseconds."""

    task_id: int
    name: str
    event: str | None
    until: int
    claim: int


_HEAD: dict[str, type] = {"task_id": int, "name": str, "event": str, "until": int, "claim": int}
_ITEM: dict[str, type] = {"task_id": int, "name": str, "item": int}
_LABEL: dict[str, type] = {"task_id": int, "name": str}


class WaitRecord(NamedTuple):
    """A stored wait as people read it: for an event, a ``task``, or ``items`` tasks; ``open`` have not ended."""

    name: str
    event: str | None
    task: int | None
    items: int
    open: int
    until: int
    at: int


def _bound(dialect: Dialect, labels: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Labels as ``rows``, and their tasks as ``ids``: of a join PostgreSQL may read the whole table."""
    return {"rows": bind_rows(labels), "ids": dialect.bind_ids([task_id for task_id, _ in labels])}


def deadlines(tx: Tx, labels: Sequence[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """Until when these (task id, name) wait, of those that have begun to."""
    rows = tx.run(
        f"SELECT w.task_id, w.name, w.until FROM {tx.dialect.rows(_LABEL)} j "
        "JOIN schedd_waits w ON w.task_id = j.task_id AND w.name = j.name AND w.item = 0 "
        f"WHERE {tx.dialect.among('w.task_id')}",
        **_bound(tx.dialect, labels),
    )
    return {(row[0], row[1]): row[2] for row in rows}


def progress(tx: Tx, labels: Sequence[tuple[int, str]]) -> dict[tuple[int, str], tuple[int, int]]:
    """Of these (task id, name) that wait for tasks: for how many, and how many of those have not ended."""
    rows = tx.run(
        "SELECT w.task_id, w.name, CAST(count(*) AS integer), "
        f"CAST(sum(CASE WHEN w.met = {OPEN} THEN 1 ELSE 0 END) AS integer) FROM {tx.dialect.rows(_LABEL)} j "
        "JOIN schedd_waits w ON w.task_id = j.task_id AND w.name = j.name AND w.item > 0 "
        f"WHERE {tx.dialect.among('w.task_id')} GROUP BY w.task_id, w.name",
        **_bound(tx.dialect, labels),
    )
    return {(row[0], row[1]): (row[2], row[3]) for row in rows}


def register(tx: Tx, heads: Sequence[StoredWait]) -> None:
    """Store that tasks wait for what has not happened; until when they do is decided once.

    The caller holds what they wait for such that it cannot happen unseen before the commit.
    """
    if heads:
        names = ", ".join(_HEAD)
        tx.run(
            f"INSERT INTO schedd_waits ({names}, item, at, met) "
            f"SELECT {names}, 0, :now, CASE WHEN event IS NULL THEN {TASKS} ELSE {OPEN} END "
            f"FROM {tx.dialect.rows(_HEAD)} j WHERE true "
            "ON CONFLICT (task_id, item, name) DO UPDATE SET claim = excluded.claim, met = excluded.met",
            rows=bind_rows(heads),
            now=tx.now,
        )


def register_items(tx: Tx, items: Sequence[tuple[int, str, int]]) -> None:
    """Rows (task id, name, awaited task) of tasks that have not ended; under the same condition."""
    if items:
        tx.run(
            "INSERT INTO schedd_waits (task_id, name, item, until, claim, at, met) "
            f"SELECT task_id, name, item, 0, 0, :now, {OPEN} FROM {tx.dialect.rows(_ITEM)} j WHERE true "
            f"ON CONFLICT (task_id, item, name) DO UPDATE SET met = {OPEN}",
            rows=bind_rows(items),
            now=tx.now,
        )


def end(tx: Tx, labels: Sequence[tuple[int, str]]) -> None:
    """These (task id, name) wait no longer."""
    if labels:
        source = f"SELECT task_id, name FROM {tx.dialect.rows(_LABEL)} j"
        sql = f"DELETE FROM schedd_waits WHERE {tx.dialect.among('task_id')} AND (task_id, name) IN ({source})"
        tx.run(sql, **_bound(tx.dialect, labels))


def events_happened(tx: Tx, names: Sequence[str]) -> int:
    """Wake the tasks that await these events. Returns how many tasks are due now that were not."""
    where = f"t.event IN (SELECT name FROM {tx.dialect.rows({'name': str})} j)"
    return _happened(tx, where, {"rows": bind_rows([(name,) for name in names])})


def tasks_ended(tx: Tx, ids: Sequence[int]) -> int:
    """Wake the tasks that await the ends of these. Returns how many tasks are due now that were not."""
    if not any_waiting(tx):
        return 0
    # ``item > 0`` for the index, which has no others; ``met + 0`` below against the one of all that is open, and so is
    # ``state + 0`` further down: else each cycle read all that is awaited, or all that is suspended.
    where = f"t.item > 0 AND {tx.dialect.among('t.item')}"
    return _happened(tx, where, {"ids": tx.dialect.bind_ids(ids)})


ANY_WAITER = "SELECT 1 FROM schedd_waits WHERE item > 0"


def any_waiting(tx: Tx) -> bool:
    """Whether any task waits for the end of another one: mostly none does."""
    return bool(tx.rows(f"{ANY_WAITER} LIMIT 1"))


def _happened(tx: Tx, where: str, bound: dict[str, str]) -> int:
    # A row that is locked is being ended by its task, which has seen what happened.
    found = tx.rows(
        f"SELECT t.task_id, t.name, t.item FROM schedd_waits t WHERE t.met + 0 = {OPEN} AND {where} "
        f"ORDER BY t.task_id, t.name, t.item {tx.dialect.skip_locked}",
        **bound,
    )
    if not found:
        return 0
    tx.rows(
        f"UPDATE schedd_waits SET met = {MET} FROM {tx.dialect.rows(_ITEM)} j WHERE schedd_waits.task_id = j.task_id "
        "AND schedd_waits.name = j.name AND schedd_waits.item = j.item",
        rows=bind_rows(found),
    )
    if tx.dialect.skip_locked:
        _hold_heads(tx, sorted({(row[0], row[1]) for row in found if row[2]}))
    return _wake(tx, sorted({row[0] for row in found}))


def _hold_heads(tx: Tx, labels: Sequence[tuple[int, str]]) -> None:
    """Two that end the last tasks of one wait at once do not see each other: one of them has to check again."""
    if labels:
        held = tx.rows(
            f"SELECT t.task_id FROM {tx.dialect.rows(_LABEL)} j JOIN schedd_waits t ON t.task_id = j.task_id "
            f"AND t.name = j.name AND t.item = 0 WHERE {tx.dialect.among('t.task_id')} "
            f"ORDER BY t.task_id, t.name {tx.dialect.skip_locked}",
            **_bound(tx.dialect, labels),
        )
        if len(held) < len(labels):
            tx.connection.info[OVERLOOKED] = True


def _wake(tx: Tx, ids: Sequence[int]) -> int:
    """Let those of these tasks be due that are suspended and have one of their waits over."""
    if tx.dialect.skip_locked:
        # Running ones, too: one that is about to be suspended then sees what happened, since it is recorded later.
        sql = f"SELECT t.id FROM schedd_tasks t WHERE {tx.dialect.among('t.id')} ORDER BY t.id {tx.dialect.skip_locked}"
        locked = tx.rows(sql, ids=tx.dialect.bind_ids(ids))
        ids = [row[0] for row in locked]
    woken = tx.rows(
        f"UPDATE schedd_tasks SET {_DUE} WHERE {tx.dialect.among('id')} AND state + 0 = {SUSPENDED} "
        "AND run_at > :now AND EXISTS (SELECT 1 FROM schedd_waits w WHERE w.task_id = schedd_tasks.id "
        f"AND w.item = 0 AND {_OVER}) RETURNING id",
        ids=tx.dialect.bind_ids(ids),
        now=tx.now,
    )
    return len(woken)


def suspended(tx: Tx, claims: Sequence[tuple[int, int]]) -> int:
    """These (task id, claim) have just been suspended: let those be due for which it has happened meanwhile.

    Waits that the claim did not come to, as its handler took another way, are forgotten. Returns how many are due.
    """
    rows = tx.dialect.rows({"id": int, "claim": int})
    bound = {"rows": bind_rows(claims), "ids": tx.dialect.bind_ids([task_id for task_id, _ in claims])}
    stale = (
        f"SELECT t.task_id, t.name, t.item FROM {rows} j JOIN schedd_waits h ON h.task_id = j.id AND h.item = 0 "
        "AND h.claim < j.claim JOIN schedd_waits t ON t.task_id = h.task_id AND t.name = h.name "
        f"WHERE {tx.dialect.among('h.task_id')} {tx.dialect.skip_locked}"
    )
    tx.run(f"DELETE FROM schedd_waits WHERE (task_id, name, item) IN ({stale})", **bound)
    woken = tx.run(
        f"UPDATE schedd_tasks SET {_DUE} WHERE {tx.dialect.among('id')} AND state + 0 = {SUSPENDED} "
        "AND run_at > :now AND EXISTS (SELECT 1 FROM schedd_waits w WHERE w.task_id = schedd_tasks.id "
        f"AND w.item = 0 AND w.claim = schedd_tasks.claim AND {_OVER})",
        ids=bound["ids"],
        now=tx.now,
    )
    return int(woken.rowcount)


ANY_MISSED = (  # suspended although what they wait for has happened; ``:most`` MET: events only
    "SELECT w.task_id FROM schedd_waits w JOIN schedd_tasks t ON t.id = w.task_id WHERE w.item = 0 AND w.met > 0 "
    f"AND w.met <= :most AND t.state = {SUSPENDED} AND t.run_at > :now AND {_OVER}"
)


def wake_missed(tx: Tx) -> int:
    """Wake such tasks. Returns how many."""
    bound = {"now": tx.now, "most": TASKS, "limit": BATCH}
    found = tx.run(f"{ANY_MISSED} LIMIT :limit", **bound).fetchall()
    return _wake(tx, sorted({row[0] for row in found})) if found else 0


_ENDED = (
    f"NOT EXISTS (SELECT 1 FROM schedd_tasks c WHERE c.id = {{item}} AND (c.state < {FIRST_TERMINAL} "
    "OR c.finished_at >= :before))"
)


def missed(tx: Tx, before: int, limit: int, looked: int | None = None) -> list[int]:
    """Suspended tasks that are not due although what they wait for has happened before then: there should be none.

    ``looked``: among so many suspended ones; None: among all.
    """
    open_item = _ENDED.format(item="i.item").removeprefix("NOT ")
    over = exists(
        "w.task_id",
        "FROM schedd_waits w WHERE w.task_id = t.id AND w.item = 0 AND CASE WHEN w.event IS NOT NULL "
        "THEN EXISTS (SELECT 1 FROM schedd_events e WHERE e.name = w.event AND e.emitted_at < :before) "
        "ELSE NOT EXISTS (SELECT 1 FROM schedd_waits i WHERE i.task_id = w.task_id AND i.name = w.name "
        f"AND i.item > 0 AND {open_item}) END",
    )
    some = "" if looked is None else f"ORDER BY state LIMIT {looked}"
    rows = tx.run(
        f"SELECT t.id FROM (SELECT id, run_at FROM schedd_tasks WHERE state >= {RETRY} AND state <= {SUSPENDED} "
        f"AND state = {SUSPENDED} {some}) t WHERE t.run_at > :now AND {over} ORDER BY t.id LIMIT :limit",
        now=tx.now,
        before=before,
        limit=limit,
    )
    return [row[0] for row in rows]


def force_wake(tx: Tx, ids: Sequence[int]) -> None:
    """Let such tasks be due, and close what they wait for and has happened."""
    bound = {"ids": bind_rows(ids), "now": tx.now, "before": tx.now}
    tx.run(
        f"UPDATE schedd_waits SET met = {MET} WHERE task_id IN {tx.dialect.ids()} AND item > 0 AND met = {OPEN} "
        f"AND {_ENDED.format(item='item')}",
        **bound,
    )
    tx.run(f"UPDATE schedd_tasks SET {_DUE} WHERE id IN {tx.dialect.ids()} AND state = {SUSPENDED}", **bound)


def records(tx: Tx, task_id: int) -> list[WaitRecord]:
    """What a task waits for, or waited when it last ran."""
    rows = tx.run(
        "SELECT h.name, h.event, h.until, h.at, "
        "(SELECT max(i.item) FROM schedd_waits i WHERE i.task_id = h.task_id AND i.name = h.name) AS task, "
        "(SELECT CAST(count(*) AS integer) - 1 FROM schedd_waits i "
        " WHERE i.task_id = h.task_id AND i.name = h.name) AS items, "
        "(SELECT CAST(count(*) AS integer) FROM schedd_waits i "
        f" WHERE i.task_id = h.task_id AND i.name = h.name AND i.met = {OPEN}) AS open "
        "FROM schedd_waits h WHERE h.task_id = :id AND h.item = 0 ORDER BY h.at, h.name",
        id=task_id,
    )
    return [WaitRecord(r.name, r.event, r.task if r.items == 1 else None, r.items, r.open, r.until, r.at) for r in rows]


def awaited_task(tx: Tx, task_id: int) -> int | None:
    """A task that this one awaits and that has not ended; None: it awaits none."""
    found = tx.run(f"SELECT min(item) FROM schedd_waits WHERE task_id = :id AND item > 0 AND met = {OPEN}", id=task_id)
    item = found.scalar_one()
    return None if item is None else int(item)
