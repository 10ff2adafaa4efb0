"""What suspended tasks wait for, and waking them once it has happened.

A wait is a row under the name of the checkpoint to come; several rows of one name, for several tasks, are over when all
of them are. Whoever makes it happen marks the rows (``met``) and lets the tasks be due, in the same transaction.
Whoever suspends a task looks for marks. Neither waits for the other: a task that falls between them, since somebody
held its row, is found by :func:`wake_met` a moment later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.store.dialect import Dialect, bind_rows, prepared
from scheduler.store.statement import run

BATCH = 1000
_COMPLETE = "NOT EXISTS (SELECT 1 FROM schedd_waits u WHERE u.task_id = w.task_id AND u.name = w.name AND u.met = 0)"

_OVERLOOKED = (
    f"SELECT w.task_id FROM schedd_waits w JOIN schedd_tasks t ON t.id = w.task_id WHERE w.met = 1 "
    f"AND t.state = {st.SUSPENDED} AND t.run_at > :now AND {_COMPLETE}"
)


class Wait(NamedTuple):
    """A wait to be registered: ``item`` is the awaited task, 0 for an event; times are microseconds."""

    task_id: int
    name: str
    item: int
    event: str | None
    until: int
    claim: int


_COLUMNS: dict[str, type] = {"task_id": int, "name": str, "item": int, "event": str, "until": int, "claim": int}


class WaitRecord(NamedTuple):
    """A stored wait for people: for an event, or for ``items`` tasks of which ``open`` have not ended."""

    name: str
    event: str | None
    task: int | None
    items: int
    open: int
    until: int
    at: int


def deadlines(
    connection: sa.Connection, dialect: Dialect, names: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], int]:
    """Until when these (task id, name) wait, of those that have begun to."""
    rows = connection.execute(
        prepared(
            f"SELECT DISTINCT w.task_id, w.name, w.until FROM {dialect.rows({'task_id': int, 'name': str})} j "
            "JOIN schedd_waits w ON w.task_id = j.task_id AND w.name = j.name"
        ),
        {"rows": bind_rows(names)},
    )
    return {(row[0], row[1]): row[2] for row in rows}


def register(connection: sa.Connection, dialect: Dialect, waits: Sequence[Wait], now: int) -> None:
    """Store waits for what has not happened; until when they last is decided once.

    The caller holds what they wait for such that it cannot happen unseen before the commit.
    """
    if waits:
        names = ", ".join(_COLUMNS)
        connection.execute(
            prepared(
                f"INSERT INTO schedd_waits ({names}, at, met) SELECT {names}, :now, 0 FROM {dialect.rows(_COLUMNS)} j "
                "WHERE true ON CONFLICT (task_id, name, item) DO UPDATE SET claim = excluded.claim, met = 0"
            ),
            {"rows": bind_rows(waits), "now": now},
        )


def end(connection: sa.Connection, dialect: Dialect, names: Sequence[tuple[int, str]]) -> None:
    """These (task id, name) wait no longer."""
    if names:
        rows = dialect.rows({"task_id": int, "name": str})
        connection.execute(
            prepared(f"DELETE FROM schedd_waits WHERE (task_id, name) IN (SELECT task_id, name FROM {rows} j)"),
            {"rows": bind_rows(names)},
        )


def events_happened(connection: sa.Connection, dialect: Dialect, names: Sequence[str], now: int) -> int:
    """Wake whoever waits for these events. Returns how many tasks are due now that were not."""
    where = f"t.event IN (SELECT name FROM {dialect.rows({'name': str})} j)"
    return _happened(connection, dialect, where, {"rows": bind_rows([(name,) for name in names])}, now)


def tasks_ended(connection: sa.Connection, dialect: Dialect, ids: Sequence[int], now: int) -> int:
    """Wake whoever waits for the ends of these tasks. Returns how many tasks are due now that were not."""
    if not anybody(connection):
        return 0
    return _happened(connection, dialect, f"t.item IN {dialect.ids()}", {"ids": bind_rows(ids)}, now)


def anybody(connection: sa.Connection) -> bool:
    """Whether any task waits for the end of another one: mostly none does."""
    return bool(run(connection, "SELECT 1 FROM schedd_waits WHERE item > 0 LIMIT 1", {}))


def _happened(connection: sa.Connection, dialect: Dialect, where: str, bound: dict[str, str], now: int) -> int:
    # A row that is locked is being ended by its task, which has seen what happened.
    found = connection.execute(
        prepared(
            f"SELECT t.task_id, t.name, t.item FROM schedd_waits t WHERE t.met = 0 AND {where} "
            f"ORDER BY t.task_id, t.name, t.item {dialect.skip_locked}"
        ),
        bound,
    ).fetchall()
    if not found:
        return 0
    rows = dialect.rows({"task_id": int, "name": str, "item": int})
    connection.execute(
        prepared(
            f"UPDATE schedd_waits SET met = 1 FROM {rows} j WHERE schedd_waits.task_id = j.task_id "
            "AND schedd_waits.name = j.name AND schedd_waits.item = j.item"
        ),
        {"rows": bind_rows([tuple(row) for row in found])},
    )
    return _wake(connection, dialect, sorted({row[0] for row in found}), now)


def _wake(connection: sa.Connection, dialect: Dialect, ids: Sequence[int], now: int) -> int:
    """Let those of these tasks be due that are suspended and have one of their waits met."""
    if dialect.skip_locked:
        # Running ones, too: one that is about to be suspended then sees the mark, since it is recorded later.
        locked = connection.execute(
            prepared(
                f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {dialect.ids()} ORDER BY t.id {dialect.skip_locked}"
            ),
            {"ids": bind_rows(ids)},
        )
        ids = [row[0] for row in locked]
    woken = connection.execute(
        prepared(
            f"UPDATE schedd_tasks SET run_at = :now WHERE id IN {dialect.ids()} AND state = {st.SUSPENDED} "
            "AND run_at > :now AND EXISTS (SELECT 1 FROM schedd_waits w WHERE w.task_id = schedd_tasks.id "
            f"AND w.met = 1 AND {_COMPLETE})"
        ),
        {"ids": bind_rows(ids), "now": now},
    )
    return int(woken.rowcount)


def suspended(connection: sa.Connection, dialect: Dialect, claims: Sequence[tuple[int, int]], now: int) -> int:
    """These (task id, claim) have just been suspended: let those be due for which it has happened meanwhile.

    Waits that the claim did not come to, as its handler took another way, are forgotten. Returns how many are due.
    """
    rows = dialect.rows({"id": int, "claim": int})
    bound = {"rows": bind_rows(claims)}
    stale = (
        f"SELECT t.task_id, t.name, t.item FROM schedd_waits t JOIN {rows} j ON j.id = t.task_id "
        f"WHERE t.claim < j.claim {dialect.skip_locked}"
    )
    connection.execute(prepared(f"DELETE FROM schedd_waits WHERE (task_id, name, item) IN ({stale})"), bound)
    woken = connection.execute(
        prepared(
            f"UPDATE schedd_tasks SET run_at = :now FROM {rows} j WHERE schedd_tasks.id = j.id "
            f"AND schedd_tasks.state = {st.SUSPENDED} AND schedd_tasks.run_at > :now AND EXISTS "
            "(SELECT 1 FROM schedd_waits w WHERE w.task_id = j.id AND w.claim = j.claim AND w.met = 1 "
            f"AND {_COMPLETE})"
        ),
        {**bound, "now": now},
    )
    return int(woken.rowcount)


def any_met(connection: sa.Connection, now: int) -> bool:
    """Whether a task is suspended although what it waits for has happened."""
    return connection.execute(prepared(f"{_OVERLOOKED} LIMIT 1"), {"now": now}).first() is not None


def wake_met(connection: sa.Connection, dialect: Dialect, now: int) -> int:
    """Wake those. Returns how many."""
    found = connection.execute(prepared(f"{_OVERLOOKED} LIMIT {BATCH}"), {"now": now}).fetchall()
    return _wake(connection, dialect, sorted({row[0] for row in found}), now) if found else 0


def records(connection: sa.Connection, task_id: int) -> list[WaitRecord]:
    """What a task waits for, or waited when it last ran."""
    rows = connection.execute(
        prepared(
            "SELECT name, max(event) AS event, max(item) AS task, CAST(count(*) AS integer) AS items, "
            "CAST(sum(1 - met) AS integer) AS open, min(until) AS until, min(at) AS at "
            "FROM schedd_waits WHERE task_id = :id GROUP BY name ORDER BY min(at), name"
        ),
        {"id": task_id},
    )
    return [
        WaitRecord(r.name, r.event, r.task if r.task and r.items == 1 else None, r.items, r.open, r.until, r.at)
        for r in rows
    ]
