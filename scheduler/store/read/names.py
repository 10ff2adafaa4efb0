"""Names and ids for a shell that completes them: quickly found, not all of them."""

from __future__ import annotations

from scheduler.model.inbox import INBOX
from scheduler.model.names import nearest
from scheduler.model.outgoing import OUTBOX
from scheduler.model.state import TaskState
from scheduler.model.texts import listed
from scheduler.store.broken_rows import options_of
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD
from scheduler.store.read.workers import workers

_MOST_QUEUES = 1000


def queue_names(tx: Tx, limit: int) -> list[str]:
    """Queues of tasks that are ready or will be, and the usual one."""
    return sorted({"default", *claimable_queues(tx, limit)})


def claimable_queues(tx: Tx, limit: int) -> list[str]:
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
    return found


def unknown_queue(tx: Tx, queue: str) -> str | None:
    """A sentence about a queue that nothing knows, with the one that was probably meant; None if something does.

    A queue is known by a task that waits or runs in it, by a worker that names it, or by a kind whose tasks go there.
    """
    known = {"default", OUTBOX, INBOX} | {name for worker in workers(tx) for name in worker.queues} - {"*"}
    known |= {str(options_of(row.options).get("queue")) for row in tx.run("SELECT options FROM schedd_kinds")}
    if queue in known:
        return None
    for states in (CLAIMABLE, HELD):
        if tx.run(f"SELECT 1 FROM schedd_tasks t WHERE {states} AND t.queue = :queue LIMIT 1", queue=queue).first():
            return None
    known |= set(queue_names(tx, _MOST_QUEUES))
    close = nearest(queue, sorted(known))
    meant = f"did you mean {close[0]!r}?" if close else f"known are {listed(sorted(known - {OUTBOX, INBOX}))}"
    return f"no worker and no kind names the queue {queue!r}, and no task waits in it; {meant}"


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
