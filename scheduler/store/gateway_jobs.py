"""Workers of jobs that speak to a gateway: each can be found by the claim that it is for, and by its process."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from scheduler.model.checkpoint import TASK_AWAIT_PREFIX, CheckpointType
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import IS_HELD
from scheduler.store.workers import STOPPED


def job_incarnation(task_id: int, claim: int, life: str) -> str:
    """The incarnation of a job's worker. ``life``: a random text of the job's process."""
    return f"job:{task_id}-{claim}:{life}"


def find(tx: Tx, incarnation: str) -> int | None:
    """The id of this worker, if it has joined before."""
    found = tx.run("SELECT id FROM schedd_workers WHERE incarnation = :incarnation", incarnation=incarnation).scalar()
    return None if found is None else int(found)


class Held(NamedTuple):
    """``cancelled``: whether the task is to end; ``started_at``: of its attempt, in microseconds."""

    cancelled: bool
    started_at: int | None


def held(tx: Tx, worker: int, incarnation: str, task_id: int, claim: int) -> Held | None:
    """The claim, if this worker lives and holds it."""
    row = tx.run(
        "SELECT t.cancel_requested, t.started_at FROM schedd_tasks t JOIN schedd_workers w ON w.id = t.worker "
        f"WHERE t.id = :id AND t.claim = :claim AND t.state + 0 {IS_HELD} AND w.id = :worker "
        f"AND w.incarnation = :incarnation AND w.state < {STOPPED}",
        id=task_id,
        claim=claim,
        worker=worker,
        incarnation=incarnation,
    ).first()
    return None if row is None else Held(row.cancel_requested is not None, row.started_at)


def not_of(tx: Tx, task_id: int, ids: Collection[int]) -> set[int]:
    """Those of ``ids`` that a task has neither spawned nor awaited, and does not depend on."""
    spawned, prefix = int(CheckpointType.SPAWN), TASK_AWAIT_PREFIX
    left = set(ids)
    for (value,) in tx.run(
        "SELECT value FROM schedd_checkpoints WHERE task_id = :id AND type = :spawned", id=task_id, spawned=spawned
    ):
        left -= {child for child, _ in msgspec.json.decode(value or "[]", type=list[tuple[int, bool]])}
    if not left:
        return left
    known = tx.run(
        f"SELECT parent FROM schedd_edges WHERE child = :id AND parent IN {tx.dialect.ids()} "
        f"UNION ALL SELECT item FROM schedd_waits WHERE task_id = :id AND item IN {tx.dialect.ids()}",
        id=task_id,
        ids=bind_rows(sorted(left)),
    )
    left -= {row[0] for row in known}
    if left:
        names = tx.run("SELECT name FROM schedd_checkpoints WHERE task_id = :id", id=task_id).scalars()
        left -= {int(name.removeprefix(prefix).partition("#")[0]) for name in names if name.startswith(prefix)}
    return left
