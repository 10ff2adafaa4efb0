"""Executors and placements: jobs of an engine elsewhere, each for one claim of a task.

An executor has a row among the workers, without a lease of its own. What is claimed for a job is held by that row until
the job takes it over with its first statement. A job that comes later changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.capacity import Capacity, Scale
from scheduler.model.placement import PlacementPhase, PlacementState, job_name
from scheduler.model.worker_states import LIVE, STOPPED
from scheduler.ports import FOREVER, SECOND
from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.pauses import IN_EFFECT
from scheduler.store.predicates import IS_HELD
from scheduler.store.tasks.claim import Claimed, read_claimed
from scheduler.store.workers import EXECUTOR_HOST, executor_incarnation

RESERVED, SUBMITTED, ATTACHED, ENDED = (state.code for state in PlacementState)
ABANDONED_AFTER = 600 * SECOND  # after the lease of the last daemon that placed for an executor


# Executors, and the lease of the one daemon that places for each


class ExecutorRecord(NamedTuple):
    """``worker``: the row that holds what no job has taken over; ``until``: of the lease of ``holder``."""

    name: str
    worker: int
    holder: str
    until: int
    version: int
    trouble: str | None


_EXECUTOR = "SELECT name, worker, holder, until, version, trouble FROM schedd_executors"


def executor(tx: Tx, name: str) -> ExecutorRecord | None:
    """The executor of this name, if a daemon has ever had it."""
    row = tx.run(f"{_EXECUTOR} WHERE name = :name", name=name).first()
    return None if row is None else ExecutorRecord(*row)


def executors(tx: Tx) -> list[ExecutorRecord]:
    """All that daemons have had, by name."""
    return [ExecutorRecord(*row) for row in tx.run(f"{_EXECUTOR} ORDER BY name")]


def take_lease(
    tx: Tx, name: str, holder: str, span: int, queues: Sequence[str] = (), scale: Scale | None = None
) -> ExecutorRecord | None:
    """Take or keep the lease of an executor for ``span`` microseconds; None while another daemon has it.

    ``queues``: those whose tasks it takes though they name no executor; ``scale``: of one that starts workers. Both are
    published with its row among the workers.
    """
    seen = executor(tx, name)
    if seen is None:
        _introduce(tx, name)
        seen = executor(tx, name)
        assert seen is not None
    if seen.holder != holder and seen.until > tx.now:
        return None
    kept = tx.run(
        "UPDATE schedd_executors SET holder = :holder, until = :until, version = version + 1 "
        "WHERE name = :name AND version = :version RETURNING name, worker, holder, until, version, trouble",
        name=name,
        holder=holder,
        until=tx.now + span,
        version=seen.version,
    ).first()
    if kept is None:
        return None
    if seen.holder != holder:
        if scale is None:  # workers that it may have started before go on until they end
            tx.run("DELETE FROM schedd_placements WHERE task_id = :key", key=-kept.worker)
        tx.run(
            "UPDATE schedd_workers SET queues = :queues, pools = :pools, heartbeat_at = :now WHERE id = :worker",
            queues=msgspec.json.encode(list(queues)).decode(),
            pools=msgspec.json.encode(Capacity(scale=scale)).decode(),
            now=tx.now,
            worker=kept.worker,
        )
    return ExecutorRecord(*kept)


def _introduce(tx: Tx, name: str) -> None:
    """Store an executor with its row among the workers, which has no lease: it is live for ever."""
    worker = tx.run(
        "INSERT INTO schedd_workers (incarnation, host, pid, version, state, queues, pools, started_at, heartbeat_at, "
        f"lease_until) VALUES (:incarnation, '{EXECUTOR_HOST}', 0, '', {LIVE}, '[]', :pools, :now, :now, {FOREVER}) "
        "ON CONFLICT (incarnation) DO UPDATE SET heartbeat_at = :now RETURNING id",
        incarnation=executor_incarnation(name),
        pools=msgspec.json.encode(Capacity()).decode(),
        now=tx.now,
    ).scalar_one()
    tx.run(
        "INSERT INTO schedd_executors (name, worker, holder, until, version) VALUES (:name, :worker, '', 0, 1) "
        "ON CONFLICT (name) DO NOTHING",
        name=name,
        worker=worker,
    )


def give_up_lease(tx: Tx, name: str, holder: str) -> None:
    """Let another daemon take the lease at once."""
    sql = "UPDATE schedd_executors SET until = :now WHERE name = :name AND holder = :holder"
    tx.run(sql, name=name, holder=holder, now=tx.now)


def set_trouble(tx: Tx, name: str, trouble: str | None) -> None:
    """Store why the engine could not be asked, for people; None: it could."""
    tx.run("UPDATE schedd_executors SET trouble = :trouble WHERE name = :name", name=name, trouble=trouble)


class PlacementCommands(NamedTuple):
    """What operators want: that nothing more is placed (``drain``); ``pauses``: see ``Pauses.of()``."""

    drain: bool
    pauses: str | None


def commands(tx: Tx, worker: int) -> PlacementCommands:
    """Read the row of an executor's worker."""
    sql = f"SELECT drain_requested, {IN_EFFECT[tx.dialect.name]} FROM schedd_workers WHERE id = :worker"
    ((drain, pauses),) = tx.rows(sql, worker=worker)
    return PlacementCommands(drain is not None, pauses)


# Placements


class Placement(NamedTuple):
    """One open placement, and its task as it is now. Times and spans are microseconds.

    ``holder``: the worker that holds the task under this claim; None: it is over. ``executing``: since when.
    """

    task_id: int
    claim: int
    name: str
    state: int
    handle: str | None
    reserved_at: int
    submitted_at: int | None
    attached_at: int | None
    phase: int | None
    reason: str | None
    tries: int
    next_at: int
    cancelled_at: int | None
    holder: int | None
    cancel_requested: int | None
    rerun: int | None
    timeout: int | None
    executing: int | None
    attempt: int
    claimed_at: int | None
    dead_letter: int | None
    kind: str | None
    queue: str | None
    resources: str | None
    options: str | None

    @property
    def key(self) -> tuple[int, int]:
        return self.task_id, self.claim


OPEN = f"""
SELECT p.task_id, p.claim, p.name, p.state, p.handle, p.reserved_at, p.submitted_at, p.attached_at, p.phase, p.reason,
  p.tries, p.next_at, p.cancelled_at,
  CASE WHEN t.claim = p.claim AND t.state + 0 {IS_HELD} THEN t.worker END AS holder,
  t.cancel_requested, t.rerun, t.timeout, t.started_at, coalesce(t.attempt, 0), t.claimed_at, t.dead_letter, t.kind,
  t.queue, t.resources, t.executor_options
FROM schedd_placements p LEFT JOIN schedd_tasks t ON t.id = p.task_id
WHERE p.executor = :executor AND p.state < {ENDED} AND {{which}} ORDER BY p.task_id, p.claim
"""


def open_placements(tx: Tx, name: str) -> list[Placement]:
    """The placements of an executor that have not ended, of tasks."""
    return [Placement._make(row) for row in tx.run(OPEN.format(which="p.task_id > 0"), executor=name)]


def reserve(tx: Tx, name: str, claimed: Sequence[Claimed], store: str) -> None:
    """Store a placement for each of these claims, in the transaction that makes them."""
    rows = [(c.id, c.claim, job_name(store, c.id, c.claim)) for c in claimed]
    columns: Columns = (("task_id", int), ("claim", int), ("name", str))
    run_over(
        tx,
        "WITH {rows} INSERT INTO schedd_placements (task_id, claim, executor, name, state, reserved_at, submitted_at, "
        f"tries) SELECT j.task_id, j.claim, :executor, j.name, {RESERVED}, :now, :now, 1 FROM j WHERE true",
        columns,
        rows,
        executor=name,
        now=tx.now,
    )


_KEY: Columns = (("task_id", int), ("claim", int))
_SET = "WITH {{rows}} UPDATE schedd_placements AS p SET {} FROM j WHERE p.task_id = j.task_id AND p.claim = j.claim"


def submitted(tx: Tx, rows: Sequence[tuple[int, int, str]]) -> None:
    """The engine has these jobs: rows (task id, claim, handle). Nothing depends on this."""
    sql = _SET.format(
        f"state = CASE WHEN p.state = {RESERVED} THEN {SUBMITTED} ELSE p.state END, handle = j.handle, next_at = 0"
    )
    run_over(tx, sql, (*_KEY, ("handle", str)), rows)


def postponed(tx: Tx, rows: Sequence[tuple[int, int, int, str]]) -> None:
    """The engine takes these jobs later: rows (task id, claim, not before, reason)."""
    sql = _SET.format("next_at = j.next_at, reason = j.reason")
    run_over(tx, sql, (*_KEY, ("next_at", int), ("reason", str)), rows)


def resubmitting(tx: Tx, keys: Sequence[tuple[int, int]]) -> None:
    """These jobs are about to be submitted again."""
    run_over(tx, _SET.format("tries = p.tries + 1, submitted_at = :now, next_at = 0"), _KEY, keys, now=tx.now)


def seen(tx: Tx, rows: Sequence[tuple[int, int, str, int, str | None, str | None]]) -> None:
    """What the engine says of these jobs: rows (task id, claim, handle, phase, reason, node)."""
    sql = _SET.format(
        "handle = j.handle, phase = j.phase, reason = j.reason, node = j.node, seen_at = :now, "
        f"state = CASE WHEN p.state = {RESERVED} THEN {SUBMITTED} ELSE p.state END"
    )
    columns: Columns = (*_KEY, ("handle", str), ("phase", int), ("reason", str), ("node", str))
    run_over(tx, sql, columns, rows, now=tx.now)


def cancelling(tx: Tx, keys: Sequence[tuple[int, int]]) -> None:
    """The engine is asked to end these jobs."""
    run_over(tx, _SET.format("cancelled_at = :now"), _KEY, keys, now=tx.now)


def end(tx: Tx, keys: Sequence[tuple[int, int]], *, lost: bool = False, reason: str | None = None) -> None:
    """These placements are over. ``lost``: the job ended before it took the claim over."""
    sql = _SET.format(f"state = {ENDED}, lost = :lost, reason = coalesce(CAST(:reason AS text), p.reason)")
    run_over(tx, sql, _KEY, keys, lost=int(lost), reason=reason)


def ended(tx: Tx, keys: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these placements that are over, whichever executor they are of."""
    sql = (
        "WITH {rows} SELECT p.task_id, p.claim FROM schedd_placements p "
        f"JOIN j ON p.task_id = j.task_id AND p.claim = j.claim WHERE p.state = {ENDED}"
    )
    return {(row[0], row[1]) for row in run_over(tx, sql, _KEY, keys)}


def lost_starts(tx: Tx, task_id: int) -> int:
    """How many jobs of this task were lost in a row before they took their claims over, up to now."""
    sql = (
        "SELECT count(*) FROM schedd_placements WHERE task_id = :id AND lost = 1 AND claim > coalesce("
        "(SELECT max(claim) FROM schedd_placements WHERE task_id = :id AND (attached_at IS NOT NULL OR lost = 2)), 0)"
    )
    return int(tx.run(sql, id=task_id).scalar_one())


def count_no_more(tx: Tx, task_id: int) -> None:
    """Let the lost starts so far count no more: the task has failed because of them."""
    tx.run("UPDATE schedd_placements SET lost = 2 WHERE task_id = :id AND lost = 1", id=task_id)


# The job


_ATTACH = f"""
UPDATE schedd_tasks SET worker = :worker WHERE id = :id AND claim = :claim AND state + 0 {IS_HELD} AND worker IN (
  SELECT worker FROM schedd_executors WHERE name = :executor
  UNION ALL SELECT id FROM schedd_workers WHERE incarnation = :before)
"""


def attach(tx: Tx, name: str, task_id: int, claim_number: int, worker: int, before: str) -> Claimed | None:
    """Take a claim over from its executor for the job's own ``worker``. None: it is not this job's, or no longer.

    ``before``: the incarnation under which the job may have done that already, in a commit whose answer was lost.
    """
    took = tx.run(_ATTACH, worker=worker, id=task_id, claim=claim_number, executor=name, before=before)
    if took.rowcount != 1:
        return None
    tx.run(
        f"UPDATE schedd_placements SET state = {ATTACHED}, attached_at = :now WHERE task_id = :id AND claim = :claim",
        id=task_id,
        claim=claim_number,
        now=tx.now,
    )
    return read_claimed(tx, task_id)


def kind_of_claim(tx: Tx, task_id: int, claim_number: int) -> tuple[str, int] | None:
    """The kind and schema_version of a task; None if this claim is over."""
    row = tx.run(
        f"SELECT kind, schema_version FROM schedd_tasks WHERE id = :id AND claim = :claim AND state + 0 {IS_HELD}",
        id=task_id,
        claim=claim_number,
    ).first()
    return None if row is None else (row.kind, row.schema_version)


def expire(tx: Tx, holders: Sequence[int]) -> None:
    """The engine says that the jobs of these workers have ended: their leases run out, unless they are renewed."""
    run_over(
        tx,
        "WITH {rows} UPDATE schedd_workers AS w SET lease_until = :before FROM j "
        f"WHERE w.id = j.id AND w.state < {STOPPED} AND w.lease_until < {FOREVER}",
        (("id", int),),
        [(holder,) for holder in holders],
        before=tx.now - 1,
    )


# For people


class PlacementRecord(NamedTuple):
    """A placement as it is shown. Times are microseconds."""

    task_id: int
    claim: int
    executor: str
    name: str
    state: PlacementState
    handle: str | None
    reserved_at: int
    submitted_at: int | None
    attached_at: int | None
    seen_at: int | None
    phase: PlacementPhase | None
    reason: str | None
    node: str | None
    tries: int
    next_at: int
    lost: bool


_SHOWN = (
    "SELECT task_id, claim, executor, name, state, handle, reserved_at, submitted_at, attached_at, seen_at, phase, "
    "reason, node, tries, next_at, lost FROM schedd_placements"
)


def placements_of(tx: Tx, task_id: int) -> list[PlacementRecord]:
    """The placements of a task, the latest last."""
    return [_record(dict(row._mapping)) for row in tx.run(f"{_SHOWN} WHERE task_id = :id ORDER BY claim", id=task_id)]


def _record(row: dict[str, Any]) -> PlacementRecord:
    phase = None if row["phase"] is None else PlacementPhase.from_code(row["phase"])
    states = {"state": PlacementState.from_code(row["state"]), "phase": phase, "lost": row["lost"] > 0}
    return PlacementRecord(**{**row, **states})


def counts(tx: Tx) -> dict[str, tuple[int, int]]:
    """How many open placements each executor has: (not begun, taken over by their jobs)."""
    rows = tx.run(
        f"SELECT executor, sum(CASE WHEN state < {ATTACHED} THEN 1 ELSE 0 END), "
        f"sum(CASE WHEN state = {ATTACHED} THEN 1 ELSE 0 END) FROM schedd_placements WHERE state < {ENDED} "
        "GROUP BY executor"
    )
    return {row[0]: (int(row[1]), int(row[2])) for row in rows}
