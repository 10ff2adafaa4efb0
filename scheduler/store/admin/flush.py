"""Emptying a store, as ``manage.py flush`` empties all other tables of a database."""

from __future__ import annotations

from scheduler.store.db.tx import Tx
from scheduler.store.schema import metadata

# Of the store itself and of who works on it, which those that run would miss.
KEPT = frozenset({"schedd_store", "schedd_workers", "schedd_kinds", "schedd_worker_kinds"})


def flush(tx: Tx) -> None:
    """Remove all tasks, schedules, events and what is known of them, whatever state they are in."""
    for table in metadata.sorted_tables:
        if table.name not in KEPT:
            tx.run(f"DELETE FROM {table.name}")
