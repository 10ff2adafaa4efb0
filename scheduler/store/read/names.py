"""Names and ids for a shell that completes them: quickly found, not all of them."""

from __future__ import annotations

from scheduler.model.state import TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE


def queue_names(tx: Tx, limit: int) -> list[str]:
    """Queues of tasks that are ready or will be, each found by one step in an index."""
    found: list[str] = []
    last, ready = "", f"{CLAIMABLE}"  # as the index says it
    while len(found) < limit:
        row = tx.run(
            f"SELECT queue FROM schedd_tasks WHERE {ready} AND queue > :last ORDER BY queue LIMIT 1", last=last
        ).first()
        if row is None:
            break
        last = row[0]
        found.append(last)
    return sorted({"default", *found})


def ids_from(tx: Tx, start: str, limit: int) -> list[tuple[int, str, str]]:
    """The newest tasks whose id begins with these digits, with kind and state."""
    if start and not (start.isascii() and start.isdigit() and start[0] != "0" and len(start) < 18):
        return []
    found: list[tuple[int, str, str]] = []
    newest = tx.run("SELECT max(id) FROM schedd_tasks").scalar() or 0
    low, high = (1, newest) if not start else (int(start), int(start))
    while low <= newest and len(found) < limit:
        rows = tx.run(
            "SELECT id, kind, state FROM schedd_tasks WHERE id >= :low AND id <= :high ORDER BY id DESC LIMIT :most",
            low=low,
            high=high,
            most=limit - len(found),
        )
        found = [*((row.id, row.kind, TaskState.from_code(row.state).value) for row in rows), *found]
        if not start:
            break
        low, high = low * 10, high * 10 + 9
    return sorted(found, reverse=True)[:limit]
