"""Who holds a key. A key is held (``held_key``) while its task lives, and for its retention after a success.

A success whose retention is over holds its key no longer; it gives it up in the transaction that takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.store.dialect import Dialect, bind_rows, prepared
from scheduler.store.lookup import exists

_OVER = f"t.state = {st.SUCCESS} AND t.key_until <= :now"


class Holder(NamedTuple):
    """The task that holds a key."""

    id: int
    state: TaskState


def holder_of(connection: sa.Connection, kind: str, key: str, now: int, lock: str = "") -> Holder | None:
    """Who holds this key, if anybody does. ``lock``: appended to the SELECT, as ``Dialect.share``."""
    row = connection.execute(
        prepared(
            "SELECT t.id, t.state FROM schedd_tasks t WHERE t.kind = :kind AND t.held_key = :key "
            f"AND NOT coalesce({_OVER}, false) {lock}"
        ),
        {"kind": kind, "key": key, "now": now},
    ).first()
    return None if row is None else Holder(row.id, TaskState.from_code(row.state))


def holders(
    connection: sa.Connection, dialect: Dialect, keys: set[tuple[str, str]], now: int
) -> dict[tuple[str, str], TaskState]:
    """The states of the holders of these (kind, key), as far as there are any."""
    rows = connection.execute(
        prepared(
            f"SELECT t.kind, t.held_key, t.state FROM {dialect.rows({'kind': str, 'key': str})} j "
            "JOIN schedd_tasks t ON t.kind = j.kind AND t.held_key = j.key "
            f"WHERE NOT coalesce({_OVER}, false)"
        ),
        {"rows": bind_rows(list(keys)), "now": now},
    )
    return {(row.kind, row.held_key): TaskState.from_code(row.state) for row in rows}


def free_expired(connection: sa.Connection, kind: str, key: str, now: int) -> None:
    """Take the key from a success whose retention is over."""
    connection.execute(
        prepared(
            "UPDATE schedd_tasks SET held_key = NULL WHERE kind = :kind AND held_key = :key "
            f"AND state = {st.SUCCESS} AND key_until <= :now"
        ),
        {"kind": kind, "key": key, "now": now},
    )


def free(connection: sa.Connection, task_id: int) -> None:
    """Take the key from a task that has ended."""
    connection.execute(
        prepared(f"UPDATE schedd_tasks SET held_key = NULL WHERE id = :id AND state >= {st.FIRST_TERMINAL}"),
        {"id": task_id},
    )


def take_back(connection: sa.Connection, dialect: Dialect, task_id: int, now: int) -> None:
    """An ended task holds its key again, unless somebody else took it meanwhile; else it goes on without it."""
    row = connection.execute(
        prepared("SELECT kind, key FROM schedd_tasks WHERE id = :id AND key IS NOT NULL"), {"id": task_id}
    ).first()
    if row is None:
        return
    free_expired(connection, row.kind, row.key, now)
    take = prepared(
        "UPDATE schedd_tasks SET held_key = key, key_until = NULL WHERE id = :id "
        f"AND state >= {st.FIRST_TERMINAL} AND NOT EXISTS "
        "(SELECT 1 FROM schedd_tasks o WHERE o.kind = schedd_tasks.kind "
        "AND o.held_key = schedd_tasks.key AND o.id <> :id)"
    )
    if dialect.name == "sqlite":
        connection.execute(take, {"id": task_id})
        return
    try:
        with connection.begin_nested():
            connection.execute(take, {"id": task_id})
    except sa.exc.IntegrityError:
        pass  # somebody took it in this very moment


_NAME: dict[str, type] = {"kind": str, "key": str}
_OTHERS = (
    "FROM schedd_tasks o WHERE o.kind = schedd_tasks.kind AND o.held_key = schedd_tasks.key AND o.id <> schedd_tasks.id"
)


def take_back_all(connection: sa.Connection, dialect: Dialect, ids: Sequence[int], now: int) -> None:
    """:func:`take_back` for many ended tasks at once; of several with the same key the first one has it."""
    rows = connection.execute(
        prepared(f"SELECT id, kind, key FROM schedd_tasks WHERE id IN {dialect.ids()} AND key IS NOT NULL ORDER BY id"),
        {"ids": bind_rows(ids)},
    ).fetchall()
    if not rows:
        return
    first = {(row.kind, row.key): row.id for row in reversed(rows)}
    connection.execute(
        prepared(
            f"UPDATE schedd_tasks SET held_key = NULL WHERE id IN (SELECT t.id FROM {dialect.rows(_NAME)} j "
            f"JOIN schedd_tasks t ON t.kind = j.kind AND t.held_key = j.key WHERE {_OVER})"
        ),
        {"rows": bind_rows(list(first)), "now": now},
    )
    try:
        with connection.begin_nested():
            connection.execute(
                prepared(
                    f"UPDATE schedd_tasks SET held_key = key, key_until = NULL WHERE id IN {dialect.ids()} "
                    f"AND state >= {st.FIRST_TERMINAL} AND NOT {exists('o.held_key', _OTHERS)}"
                ),
                {"ids": bind_rows(sorted(first.values()))},
            )
    except sa.exc.IntegrityError:  # somebody took one in this very moment
        for task_id in sorted(first.values()):
            take_back(connection, dialect, task_id, now)
