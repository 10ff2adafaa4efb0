"""Which task holds a key: ``held_key``.

A task holds its key while it lives, and after a success for the key's retention. Later the transaction that needs the
key takes it from the success.

Every way to run a task again calls :func:`take`: its key must be free, and no other task may have completed under it
since. :func:`others` is the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler.errors import DuplicateKeyError
from scheduler.model.state import FIRST_TERMINAL, SUCCESS, TaskState
from scheduler.model.unique import DerivedKey
from scheduler.store.db.dialect import Dialect, bind_rows
from scheduler.store.db.lazy import sa
from scheduler.store.db.tx import Tx

_OVER = f"t.state = {SUCCESS} AND t.key_until <= :now"


class KeyHolder(NamedTuple):
    """The task that holds a key."""

    id: int
    state: TaskState


def holder_of(tx: Tx, kind: str, key: str, lock: str = "") -> KeyHolder | None:
    """The task that holds this key, None if it is free. ``lock``: SQL for the SELECT (``Dialect.share``)."""
    for found, state in tx.rows(
        "SELECT t.id, t.state FROM schedd_tasks t WHERE t.kind = :kind AND t.held_key = :key "
        f"AND NOT coalesce({_OVER}, false) {lock}",
        kind=kind,
        key=key,
        now=tx.now,
    ):
        return KeyHolder(found, TaskState.from_code(state))
    return None


def keeps_out(holder: KeyHolder, states: int | None) -> bool:
    """Whether the holder keeps another task out that is unique in these states (bits by code; None: all)."""
    return states is None or bool(states >> holder.state.code & 1)


def release_early(tx: Tx, task_id: int) -> None:
    """Take the key from a task, though it lives: it does not keep others out in its state."""
    tx.rows("UPDATE schedd_tasks SET held_key = NULL WHERE id = :id", id=task_id)


def change(tx: Tx, task_id: int, kind: str, key: DerivedKey) -> None:
    """Give a task the key that its new payload makes; while it lives, it holds that key.

    Raises DuplicateKeyError if another task holds it; then nothing is changed.
    """
    for last in (False, False, True):
        holder = holder_of(tx, kind, key.text)
        if holder is not None and holder.id != task_id:
            if keeps_out(holder, key.states):
                raise DuplicateKeyError(kind, key.text, holder.id, completed=holder.state is TaskState.SUCCESS)
            release_early(tx, holder.id)
        release_expired(tx, kind, key.text)
        try:
            with tx.connection.begin_nested():
                tx.run(
                    "UPDATE schedd_tasks SET key = :key, key_retention = :retention, key_until = NULL, "
                    f"held_key = CASE WHEN state < {FIRST_TERMINAL} THEN CAST(:key AS text) END WHERE id = :id",
                    key=key.text,
                    retention=key.retention,
                    id=task_id,
                )
            return
        except sa.exc.IntegrityError:
            if last:
                raise
            # Another transaction took it meanwhile: read again.


def holders(tx: Tx, keys: set[tuple[str, str]]) -> dict[tuple[str, str], TaskState]:
    """The states of the tasks that hold these (kind, key); free keys are left out."""
    rows = tx.rows(
        f"SELECT t.kind, t.held_key, t.state FROM {tx.dialect.rows({'kind': str, 'key': str})} j "
        "JOIN schedd_tasks t ON t.kind = j.kind AND t.held_key = j.key "
        f"WHERE NOT coalesce({_OVER}, false)",
        rows=bind_rows(list(keys)),
        now=tx.now,
    )
    return {(kind, key): TaskState.from_code(state) for kind, key, state in rows}


def release_expired(tx: Tx, kind: str, key: str) -> None:
    """Take the key from a success whose retention is over."""
    _release_expired(tx, [(kind, key)])


def _release_expired(tx: Tx, names: Iterable[tuple[str, str]]) -> None:
    tx.rows(
        "UPDATE schedd_tasks SET held_key = NULL WHERE id IN "
        f"(SELECT t.id FROM {tx.dialect.rows({'kind': str, 'key': str})} j "
        f"JOIN schedd_tasks t ON t.kind = j.kind AND t.held_key = j.key WHERE {_OVER})",
        rows=bind_rows(list(names)),
        now=tx.now,
    )


def release_ended(tx: Tx, task_id: int) -> None:
    """Take the key from a task that has ended."""
    tx.rows(f"UPDATE schedd_tasks SET held_key = NULL WHERE id = :id AND state >= {FIRST_TERMINAL}", id=task_id)


class EndedTask(NamedTuple):
    """A task that has ended, and the key under which it may run again. ``at``: when it ended."""

    id: int
    kind: str
    key: str
    at: int | None


class Other(NamedTuple):
    """The task that keeps another one from running again: it holds ``key``, or ``completed``."""

    id: int
    kind: str
    key: str
    completed: bool

    @property
    def error(self) -> DuplicateKeyError:
        """The error for a caller that named the blocked task."""
        return DuplicateKeyError(self.kind, self.key, self.id, completed=self.completed)


_ENDED: dict[str, type] = {"id": int, "kind": str, "key": str, "at": int}
_HOLDS = (
    "SELECT min(t.id + 0) FROM schedd_tasks t WHERE t.kind = {0}.kind AND t.held_key = {0}.key AND t.id <> {0}.id "
    f"AND NOT coalesce({_OVER}, false)"
)


def completed_since(one: str, at: str = "finished_at") -> str:
    """SQL: whether ``t`` completed after ``one``, of the same key, had ended.

    Ids show which task was stored later, even if a clock was set back.
    """
    return f"(t.id > {one}.id OR t.finished_at > {one}.{at})"


# The sums keep planners from the index of all successes, and from walking up the primary key.
_COMPLETED = (
    "SELECT min(t.id + 0) FROM schedd_tasks t WHERE t.kind = {0}.kind AND t.key = {0}.key "
    f"AND t.state + 0 = {SUCCESS} AND t.id <> {{0}}.id AND {completed_since('{0}', 'at')}"
)


def others(tx: Tx, tasks: Iterable[EndedTask]) -> dict[int, Other]:
    """The tasks that must not run again under their keys, with the task that blocks each.

    A key is not free while another task holds it, nor once another one has completed under it since. Of several tasks
    with one key the first may have it.
    """
    first: dict[tuple[str, str], EndedTask] = {}
    for task in sorted(tasks):
        first.setdefault((task.kind, task.key), task)
    rows = tx.run(
        f"SELECT j.id, ({_HOLDS.format('j')}) AS holder, ({_COMPLETED.format('j')}) AS done "
        f"FROM {tx.dialect.rows(_ENDED)} j",
        rows=bind_rows(list(first.values())),
        now=tx.now,
    )
    found = {row.id: (row.holder, row.done) for row in rows}
    refused: dict[int, Other] = {}
    for task in tasks:
        own = first[task.kind, task.key]
        holder, done = found[own.id]
        if done is not None or holder is not None:
            refused[task.id] = Other(done or holder, task.kind, task.key, completed=done is not None)
        elif own is not task:
            refused[task.id] = Other(own.id, task.kind, task.key, completed=False)
    return refused


def take(tx: Tx, ids: Sequence[int]) -> dict[int, Other]:
    """Take the keys of ended tasks that are about to run again.

    All or none: if a key is not free, takes none and returns the tasks that are blocked.
    """
    for last in (False, False, True):
        tasks = [EndedTask(*row) for row in tx.run(_keyed(tx.dialect), ids=bind_rows(ids))]
        if not tasks:
            return {}
        _release_expired(tx, {(task.kind, task.key) for task in tasks})
        refused = others(tx, tasks)
        if refused:
            return refused
        try:
            with tx.connection.begin_nested():
                tx.run(_take(tx.dialect), ids=bind_rows([task.id for task in tasks]))
            return {}
        except sa.exc.IntegrityError:
            if last:
                raise
            # Another transaction took one meanwhile: read again.
    raise AssertionError("unreachable")


def _keyed(dialect: Dialect) -> str:
    return (
        f"SELECT id, kind, key, finished_at FROM schedd_tasks WHERE id IN {dialect.ids()} AND key IS NOT NULL "
        f"AND state >= {SUCCESS} ORDER BY id"
    )


def _take(dialect: Dialect) -> str:
    return (
        f"UPDATE schedd_tasks SET held_key = key, key_until = NULL WHERE id IN {dialect.ids()} AND state >= {SUCCESS}"
    )
