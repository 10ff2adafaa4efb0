"""Checkpoints: written under the fence by the caller, read under it here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.checkpoint import CAUGHT_NOTE, TASK_AWAIT_PREFIX, CheckpointType, Recorded
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import IS_HELD


class CheckpointEntry(NamedTuple):
    """A checkpoint to be written. ``note``: what is odd about it; times are microseconds."""

    task_id: int
    claim: int
    name: str
    type: int
    seq: int
    value: str | None = None
    failure: str | None = None
    started_at: int | None = None
    note: str | None = None


_COLUMNS: dict[str, type] = {
    "task_id": int,
    "claim": int,
    "name": str,
    "type": int,
    "seq": int,
    "value": str,
    "failure": str,
    "started_at": int,
    "note": str,
}


class CheckpointRecord(NamedTuple):
    """A stored checkpoint for people: ``size`` in characters of JSON, ``until`` of a sleep; times in microseconds."""

    name: str
    type: CheckpointType
    claim: int
    started_at: int | None
    at: int
    size: int
    value: str | None
    failure: str | None
    note: str | None


def write(tx: Tx, entries: Sequence[CheckpointEntry]) -> None:
    """Store checkpoints; the caller has made sure that the claims are held, and stay so until the commit.

    What is recorded stays as it is, unless a name is now of another type.
    """
    if not entries:
        return
    names = ", ".join(_COLUMNS)
    taken = ", ".join(f"{name} = excluded.{name}" for name in (*_COLUMNS, "at") if name not in ("task_id", "name"))
    tx.run(
        f"INSERT INTO schedd_checkpoints ({names}, at) SELECT {names}, :now FROM {tx.dialect.rows(_COLUMNS)} j "
        f"WHERE true ON CONFLICT (task_id, name) DO UPDATE SET {taken} "
        "WHERE schedd_checkpoints.type <> excluded.type",
        rows=bind_rows(entries),
        now=tx.now,
    )


def read(tx: Tx, worker: int, task_id: int, claim: int) -> dict[str, Recorded] | None:
    """What is recorded of a task, in order; None unless this claim is still held."""
    rows = tx.run(
        "SELECT c.name, c.type, c.value, c.failure FROM schedd_tasks t "
        "LEFT JOIN schedd_checkpoints c ON c.task_id = t.id WHERE t.id = :id AND t.claim = :claim "
        f"AND t.worker = :worker AND t.state + 0 {IS_HELD} ORDER BY c.at, c.seq",
        id=task_id,
        claim=claim,
        worker=worker,
    ).fetchall()
    if not rows:
        return None
    return {row[0]: Recorded(CheckpointType(row[1]), row[2], row[3]) for row in rows if row[0] is not None}


def find(tx: Tx, labels: Sequence[tuple[int, str]]) -> dict[tuple[int, str], Recorded]:
    """What is recorded under these names, by (task id, name)."""
    named = tx.dialect.rows({"task_id": int, "name": str})
    rows = tx.run(
        f"SELECT c.task_id, c.name, c.type, c.value, c.failure FROM {named} j "
        "JOIN schedd_checkpoints c ON c.task_id = j.task_id AND c.name = j.name",
        rows=bind_rows(labels),
    )
    return {(row[0], row[1]): Recorded(CheckpointType(row[2]), row[3], row[4]) for row in rows}


def records(tx: Tx, task_id: int) -> list[CheckpointRecord]:
    """All checkpoints of a task, in the order in which they were recorded."""
    rows = tx.run(
        "SELECT name, type, claim, started_at, at, coalesce(length(value), 0) AS size, "
        "CASE WHEN length(value) <= 200 THEN value END AS value, failure, note "
        "FROM schedd_checkpoints WHERE task_id = :id ORDER BY at, seq",
        id=task_id,
    )
    return [
        CheckpointRecord(
            r.name, CheckpointType(r.type), r.claim, r.started_at, r.at, r.size, r.value, r.failure, r.note
        )
        for r in rows
    ]


def annotate(tx: Tx, notes: Sequence[tuple[int, int, str, str]]) -> None:
    """Rows (task id, claim, name, note): say of a checkpoint what is odd about it, if that claim is the newest."""
    rows = tx.dialect.rows({"task_id": int, "claim": int, "name": str, "note": str})
    tx.run(
        f"UPDATE schedd_checkpoints SET note = j.note FROM {rows} j JOIN schedd_tasks t "
        "ON t.id = j.task_id AND t.claim = j.claim "
        "WHERE schedd_checkpoints.task_id = j.task_id AND schedd_checkpoints.name = j.name",
        rows=bind_rows(notes),
    )


def drop(tx: Tx, labels: Sequence[tuple[int, str]]) -> None:
    """What is recorded under these (task id, name) does not hold any more."""
    if labels:
        source = f"SELECT task_id, name FROM {tx.dialect.rows({'task_id': int, 'name': str})} j"
        tx.run(f"DELETE FROM schedd_checkpoints WHERE (task_id, name) IN ({source})", rows=bind_rows(labels))


def reconsider(tx: Tx, ids: Sequence[int]) -> None:
    """A caller retries these tasks by hand: forget what they waited for in vain, so that they wait for it anew.

    A failure that the handler caught and went on from stays: it decided what was done next. So do all values, but that
    the tasks of a map have ended: some may live again.
    """
    bound = {"ids": bind_rows(ids)}
    tx.run(
        f"DELETE FROM schedd_checkpoints WHERE task_id IN {tx.dialect.ids()} AND "
        "(failure IS NOT NULL AND coalesce(note, '') <> :caught "
        f"OR type = {int(CheckpointType.TASK)} AND value IS NOT NULL "
        f"AND substr(name, 1, {len(TASK_AWAIT_PREFIX)}) <> :one)",
        **bound,
        caught=CAUGHT_NOTE,
        one=TASK_AWAIT_PREFIX,
    )
    tx.run(f"DELETE FROM schedd_waits WHERE task_id IN {tx.dialect.ids()}", **bound)


def forget(tx: Tx, ids: Sequence[int]) -> None:
    """Remove all checkpoints and waits of these tasks: they begin anew, or are removed themselves."""
    bound = {"ids": bind_rows(ids)}
    for table in ("schedd_checkpoints", "schedd_waits"):
        tx.rows(f"DELETE FROM {table} WHERE task_id IN {tx.dialect.ids()}", **bound)
