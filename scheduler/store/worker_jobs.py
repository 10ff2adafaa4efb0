"""Jobs of executors that are workers for many tasks. Each has a row among the placements, of no task.

The key of such a row is minus the executor's row among the workers, and a number that no other job of the executor ever
has: the version of the executor's lease. The job's first statement marks the row as its own, so that of two jobs of one
name one runs. The worker publishes the name of its job with its slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from scheduler.model.capacity import Capacity, Scale
from scheduler.model.placement import worker_job_key, worker_job_name
from scheduler.model.worker_states import STOPPED
from scheduler.ports import FOREVER
from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.placements import ABANDONED_AFTER, ATTACHED, ENDED, OPEN, RESERVED, Placement
from scheduler.store.predicates import CLAIMABLE
from scheduler.store.tasks.claim import LaneHead
from scheduler.store.workers import publish_capacity

_OPEN = OPEN.format(which="p.task_id < 0")
_NUMBERS: Columns = (("number", int),)


def open_workers(tx: Tx, name: str) -> list[Placement]:
    """The jobs of an executor that are not over, as placements of no task."""
    return [Placement._make(row) for row in tx.run(_OPEN, executor=name)]


def reserve(tx: Tx, name: str, holder: str, number: int, most: int, store: str) -> int | None:
    """Store up to ``number`` jobs of an executor, so that it has ``most`` at most. Returns how many.

    None: the lease is another daemon's.
    """
    row = tx.run(
        "UPDATE schedd_executors SET version = version + :number WHERE name = :name AND holder = :holder "
        "AND until > :now RETURNING worker, version",
        name=name,
        holder=holder,
        number=number,
        now=tx.now,
    ).first()
    if row is None:
        return None
    there = tx.run(
        f"SELECT count(*) FROM schedd_placements WHERE executor = :name AND task_id < 0 AND state < {ENDED}", name=name
    ).scalar_one()
    numbers = range(row.version - number + 1, row.version + 1)[: max(0, most - int(there))]
    run_over(
        tx,
        "WITH {rows} INSERT INTO schedd_placements (task_id, claim, executor, name, state, reserved_at, submitted_at, "
        f"tries) SELECT :key, j.number, :executor, j.name, {RESERVED}, :now, :now, 1 FROM j WHERE true",
        (*_NUMBERS, ("name", str)),
        [(one, worker_job_name(store, row.worker, one)) for one in numbers],
        key=-row.worker,
        executor=name,
        now=tx.now,
    )
    return len(numbers)


def attach(tx: Tx, job: str, before: str, *, again: bool) -> bool:
    """Mark a job's row as this worker's. False: another job of this name has, or the job is not wanted any more.

    ``before``: the incarnation under which this one may have done that already, in a commit whose answer was lost.
    ``again``: it has done so, and lost its lease.
    """
    row, number = worker_job_key(job)
    done = tx.run(
        f"UPDATE schedd_placements SET state = {ATTACHED}, attached_at = coalesce(attached_at, :now) "
        f"WHERE task_id = :key AND claim = :number AND (state < {ATTACHED} OR (state = {ATTACHED} AND (:again = 1 "
        "OR EXISTS (SELECT 1 FROM schedd_workers WHERE incarnation = :before))))",
        key=-row,
        number=number,
        before=before,
        again=int(again),
        now=tx.now,
    )
    return bool(done.rowcount == 1)


def remove(tx: Tx, row: int, numbers: Sequence[int], *, attached: bool) -> None:
    """Remove jobs of the executor with this row that are over. Not ``attached``: not those that have begun meanwhile.

    A job that begins late finds no row, and ends.
    """
    which = "" if attached else f" AND state < {ATTACHED}"
    run_over(
        tx,
        "WITH {rows} DELETE FROM schedd_placements WHERE task_id = :key AND claim IN (SELECT number FROM j)" + which,
        _NUMBERS,
        [(number,) for number in numbers],
        key=-row,
    )


def forget_abandoned(tx: Tx) -> int:
    """Remove the rows of jobs of executors for which no daemon has started any lately. Returns how many.

    Those that work go on; those that begin late end.
    """
    done = tx.run(
        "DELETE FROM schedd_placements WHERE task_id < 0 AND executor IN "
        "(SELECT name FROM schedd_executors WHERE until < :before)",
        before=tx.now - ABANDONED_AFTER,
    )
    return int(done.rowcount)


def live(tx: Tx) -> dict[str, int]:
    """The workers that have neither stopped nor been found dead, by the names of their jobs."""
    rows = tx.run(
        f"SELECT id, pools FROM schedd_workers WHERE state < {STOPPED} AND lease_until < {FOREVER} ORDER BY id"
    )
    return {job: row.id for row in rows if (job := _job(row.pools))}


def _job(pools: str) -> str:
    try:
        return msgspec.json.decode(pools, type=Capacity).job
    except msgspec.MsgspecError:
        return ""


def publish_scale(tx: Tx, row: int, scale: Scale) -> None:
    """Publish how many workers the executor with this row wants."""
    publish_capacity(tx, row, Capacity(scale=scale))


def count_due(tx: Tx, heads: Iterable[LaneHead], most: int) -> int:
    """How many tasks are due in these lanes, ``most`` at most."""
    found = 0
    for head in heads:
        if found >= most:
            break
        found += tx.run(
            f"SELECT count(*) FROM (SELECT 1 FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane "
            "AND priority = :priority AND run_at <= :now ORDER BY run_at, id LIMIT :most) AS due",
            queue=head.queue,
            lane=head.lane,
            priority=head.priority,
            now=tx.now,
            most=most - found,
        ).scalar_one()
    return found
