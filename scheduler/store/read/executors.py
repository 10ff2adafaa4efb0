"""Executors and placements as they are shown: who places, what runs, and why a task waits there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.model.capacity import Capacity, Scale
from scheduler.model.placement import PlacementPhase, PlacementState, placement_text
from scheduler.model.texts import counted, listed, rfc3339
from scheduler.store.db.tx import Tx

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.placements import PlacementRecord


class ExecutorStatus(NamedTuple):
    """One executor. ``placed_by``: the daemon that has its lease, None: no daemon places; ``since``: of no daemon.

    ``pending``: jobs that have not begun; ``running``: those that hold their claims, or are workers; ``scale``: of an
    executor that starts workers. Times are microseconds.
    """

    name: str
    worker: int
    queues: tuple[str, ...]
    placed_by: str | None
    since: int
    draining: bool
    trouble: str | None
    pending: int
    running: int
    scale: Scale | None = None

    def serves_queue(self, queue: str) -> bool:
        """Whether it takes tasks of this queue though they name no executor."""
        return queue in self.queues or "*" in self.queues

    @property
    def reason(self) -> str | None:
        """Why it places nothing; None if it does."""
        if self.placed_by is None:
            does = "places tasks" if self.scale is None else "starts workers"
            return f"no live daemon {does} for executor {self.name!r}, since {rfc3339(self.since, exact=False)}"
        if self.draining:
            return f"executor {self.name!r} is drained: `schedctl worker resume {self.worker}` ends that"
        if self.trouble is not None:
            return f"the backend of executor {self.name!r} cannot be asked: {self.trouble}"
        return None

    @property
    def idle_reason(self) -> str | None:
        """Why it starts no worker; None if it does."""
        trouble = None if self.scale is None else self.scale.trouble
        return self.reason or (f"workers of executor {self.name!r} do not begin: {trouble}" if trouble else None)


_EXECUTORS = (
    "SELECT e.name, e.worker, e.holder, e.until, e.trouble, w.queues, w.pools, w.drain_requested "
    "FROM schedd_executors e LEFT JOIN schedd_workers w ON w.id = e.worker ORDER BY e.name"
)


def executor_statuses(tx: Tx, *, counted_too: bool = False) -> dict[str, ExecutorStatus]:
    """All executors that daemons have had, by name; ``counted_too``: with their jobs."""
    counts = _counts(tx) if counted_too else {}
    return {row.name: _status(row, counts, tx.now) for row in tx.run(_EXECUTORS)}


def _counts(tx: Tx) -> Mapping[str, tuple[int, int]]:
    from scheduler.store import placements  # where there is no executor, nobody needs it

    return placements.counts(tx)


def _status(row: sa.Row[Any], counts: Mapping[str, tuple[int, int]], now: int) -> ExecutorStatus:
    try:
        queues = tuple(msgspec.json.decode(row.queues or "[]", type=list[str]))
    except msgspec.MsgspecError:
        queues = ()
    try:
        scale = msgspec.json.decode(row.pools or "{}", type=Capacity).scale
    except msgspec.MsgspecError:
        scale = None
    pending, running = counts.get(row.name, (0, 0))
    is_live = row.until > now
    return ExecutorStatus(
        row.name,
        row.worker,
        queues,
        row.holder if is_live else None,
        row.until,
        row.drain_requested is not None,
        row.trouble if is_live else None,
        pending,
        running,
        scale,
    )


def unplaced(known: Mapping[str, ExecutorStatus], executor: str, queue: str | None = None) -> str | None:
    """Why no job is started for a task that names this executor; None if one is. ``queue``: of the task, if it counts:
    for an executor that starts workers."""
    found = known.get(executor)
    if found is None:
        return f"no daemon has had [executors.{executor}] in its configuration"
    if found.scale is not None and queue is not None and not found.serves_queue(queue):
        return f"the workers of executor {executor!r} serve queue {listed(list(found.queues))} only, not {queue!r}"
    return found.idle_reason


def latest(tx: Tx, task_id: int, claim: int) -> PlacementRecord | None:
    """The placement of this claim, if it has one."""
    from scheduler.store import placements

    return next((one for one in placements.placements_of(tx, task_id) if one.claim == claim), None)


def describe(placement: PlacementRecord, now: int) -> str:
    """``placed on slurm as 4711: queued, Resources``."""
    text = placement_text(placement.executor, placement.handle, placement.phase, placement.reason)
    if placement.state is not PlacementState.RESERVED:
        return text
    if placement.next_at > now:
        return f"{text}; it is submitted again at {rfc3339(placement.next_at, exact=False)}"
    tries = "" if placement.tries <= 1 else f", after {counted(placement.tries, 'submission')}"
    return f"{text}; the engine has not confirmed the job{tries}"


def waits_there(tx: Tx, executor: ExecutorStatus) -> str:
    """What a task waits for that is due, and that no job was started for."""
    pending, running = _counts(tx).get(executor.name, (0, 0))
    jobs = f"{counted(pending, 'job')} that {'has' if pending == 1 else 'have'} not begun, {running} running"
    return f"executor {executor.name} places it at its next look, or when others have begun ({jobs})"


def waits_for_worker(tx: Tx, executor: ExecutorStatus) -> str:
    """What a due task waits for where an executor starts workers: ``waits for a worker of executor gpu: pending``."""
    scale = executor.scale
    assert scale is not None, "this executor starts workers"
    pending, running = _counts(tx).get(executor.name, (0, 0))
    text = f"waits for a worker of executor {executor.name}"
    if pending:
        from scheduler.store import worker_jobs

        first = min(
            (one for one in worker_jobs.open_workers(tx, executor.name)), key=lambda one: (one.state, one.claim)
        )
        phase = "submitted" if first.phase is None else PlacementPhase.from_code(first.phase)
        word = "pending" if phase is PlacementPhase.QUEUED else phase
        detail = ", ".join(part for part in (word, first.reason) if part)
        return f"{text}: {detail} ({first.name})"
    if scale.most <= running:
        return f"{text}: all {counted(running, 'worker')} that there may be are at work"
    at_work = f"{counted(running, 'worker')} {'is' if running == 1 else 'are'} at work, " if running else ""
    another = "another one" if running else "one"
    return f"{text}: {at_work}{another} is started once a task has been due for {scale.older:g} s"
