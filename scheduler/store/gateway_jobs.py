"""Workers of jobs that speak to a gateway: each can be found by the claim that it is for, and by its process."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from scheduler.model.checkpoint import TASK_AWAIT_PREFIX, CheckpointType
from scheduler.model.worker_states import STOPPED
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import IS_HELD

_NUMBER = re.compile(r"(?<![\w.-])[1-9][0-9]{0,18}(?![\w.])")  # a whole one, of JSON or in a text of it


def job_incarnation(task_id: int, claim: int, life: str) -> str:
    """The incarnation of a job's worker. ``life``: a random text of the job's process."""
    return f"job:{task_id}-{claim}:{life}"


def find(tx: Tx, incarnation: str) -> int | None:
    """The id of this worker, if it has joined before."""
    found = tx.run("SELECT id FROM schedd_workers WHERE incarnation = :incarnation", incarnation=incarnation).scalar()
    return None if found is None else int(found)


class HeldJob(NamedTuple):
    """``cancelled``: whether the task is to end; ``started_at``: of its attempt, in microseconds."""

    cancelled: bool
    started_at: int | None


def held(tx: Tx, worker: int, incarnation: str, task_id: int, claim: int) -> HeldJob | None:
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
    return None if row is None else HeldJob(row.cancel_requested is not None, row.started_at)


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
        # A step may have any name, so the type counts, too.
        awaited = "SELECT name FROM schedd_checkpoints WHERE task_id = :id AND type = :awaited"
        names = tx.run(awaited, id=task_id, awaited=int(CheckpointType.TASK)).scalars()
        left -= {int(name.removeprefix(prefix).partition("#")[0]) for name in names if name.startswith(prefix)}
    return left


def not_given(tx: Tx, task_id: int, ids: Collection[int]) -> set[int]:
    """Those of ``ids`` that a task may not await: that :func:`not_of` names, and no data has that others gave to it.

    These are its payload and headers, the results of tasks that it depends on or has awaited, and events.
    """
    left = not_of(tx, task_id, ids)
    if not left:
        return left
    given = tx.run(
        "SELECT coalesce(t.payload, v.value) AS text FROM schedd_tasks t LEFT JOIN schedd_task_values v "
        "ON v.task_id = t.id AND v.name = 'payload' WHERE t.id = :id UNION ALL "
        "SELECT t.headers FROM schedd_tasks t WHERE t.id = :id UNION ALL "
        "SELECT c.value FROM schedd_checkpoints c WHERE c.task_id = :id AND c.type IN (:event, :awaited) UNION ALL "
        "SELECT coalesce(p.result, v.value) FROM schedd_edges e JOIN schedd_tasks p ON p.id = e.parent "
        "LEFT JOIN schedd_task_values v ON v.task_id = p.id AND v.name = 'result' WHERE e.child = :id",
        id=task_id,
        event=int(CheckpointType.EVENT),
        awaited=int(CheckpointType.TASK),
    )
    for (text,) in given:
        left -= {int(number) for number in _NUMBER.findall(text or "")}
    return left
