"""Removes what has outlived its retention, batch by batch, each batch recorded in the audit; dead letters; and all that
a store has, as ``manage.py flush`` empties the other tables of a database."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.model.state import DEAD, TaskState
from scheduler.store import audit
from scheduler.store.admin import retention
from scheduler.store.admin.retention import Removed, remove
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.graph.release import parents_removed
from scheduler.store.schema import metadata


def collect(database: Database, kept: Mapping[str, float]) -> Removed:
    """Remove what is over. ``kept``: seconds, as ``[retention]`` names them. Other transactions do not wait long.

    Raises StoreUnavailableError; what was committed before stays removed.
    """
    removed = Removed(more=True)
    while removed.more:
        one = database.change(lambda tx: _batch(tx, kept))
        removed = removed.plus(one)
    after: int | None = 0
    while after is not None:
        one, after = database.change(lambda tx, since=after: _rescan(tx, kept, since))  # type: ignore[misc]
        removed = removed.plus(one)
    return removed


def _batch(tx: Tx, kept: Mapping[str, float]) -> Removed:
    one = retention.purge_batch(tx, kept)
    _record(tx, one)
    return one


def _rescan(tx: Tx, kept: Mapping[str, float], after: int) -> tuple[Removed, int | None]:
    one, following = retention.rescan(tx, kept, after)
    _record(tx, one)
    return one, following


def _record(tx: Tx, removed: Removed) -> None:
    counts = {name: count for name, count in removed._asdict().items() if count and name != "more"}
    if counts:
        audit.record(tx, "cleanup", subject="store", removed=counts)


# Of the store itself and of who works on it, which those that run would miss.
KEPT = frozenset({"schedd_store", "schedd_workers", "schedd_kinds", "schedd_worker_kinds"})


def flush(tx: Tx) -> None:
    """Remove all tasks, schedules, events and what is known of them, whatever state they are in."""
    for table in metadata.sorted_tables:
        if table.name not in KEPT:
            tx.run(f"DELETE FROM {table.name}")


def remove_dead(tx: Tx, errors: Mapping[int, str | None]) -> None:
    """Remove these dead letters, ids with their errors, which the caller has locked; outcomes and the audit stay.

    What waits for one of them to be retried ends as failed.
    """
    if errors:
        audit.record(tx, "purge", tasks={task_id: {"error": error} for task_id, error in errors.items()})
        parents_removed(tx, dict.fromkeys(errors, TaskState.DEAD))
        remove(tx, [(task_id, DEAD) for task_id in errors])
