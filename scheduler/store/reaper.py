"""Reclaims the tasks of workers whose lease has run out."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import msgspec

from scheduler.model import worker_states
from scheduler.model.lanes import QUARANTINE_LANE
from scheduler.model.outcome import AttemptEnd
from scheduler.model.placement import PlacementPhase
from scheduler.model.retry import is_spent
from scheduler.model.rollup import RollupCounter
from scheduler.model.state import CANCELLED, DEAD, END_BIT, FAILED, FIRST_TERMINAL, RUNNING, SCHEDULED, TaskState
from scheduler.model.worker_states import STOPPED
from scheduler.store import fleet_starts
from scheduler.store.db.begun import begun
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.graph.descendants import BROKEN_BITS
from scheduler.store.graph.release import release
from scheduler.store.predicates import held
from scheduler.store.tasks.outcome_locks import lock_descendants
from scheduler.store.tasks.replace import apply_deferred, blocked_replacements
from scheduler.store.workers import _DEAD_HOLDING, _FIND_EXPIRED, _NEXT_LAPSE, DEATHS_ALONE, SUSPECT_TWICE, _noted_here


class LostAttempt(NamedTuple):
    """An attempt whose handler had begun when its worker died or lost its lease. Instants are microseconds.

    ``used``: it counts as one of the task's attempts.
    """

    task_id: int
    claim: int
    number: int
    claimed_at: int
    started_at: int | None
    kind: str = ""
    queue: str = ""
    used: bool = True


class Reclaimed(NamedTuple):
    """One dead worker and what it held. ``process``: ``host:pid``."""

    worker: int
    label: str
    tasks: int
    poisoned: tuple[int, ...]
    spent: tuple[int, ...] = ()  # tasks that have used their last attempt
    lost: tuple[LostAttempt, ...] = ()
    process: str = ""


def count_lost(counter: RollupCounter, now: int, found: Sequence[Reclaimed]) -> None:
    """Count the attempts that dead workers have used up: they had begun, and no preemption ended them."""
    for lost in (lost for one in found for lost in one.lost if lost.used):
        counter.add_taken(now, lost.kind, lost.queue, AttemptEnd.LOST, now - (lost.started_at or now))


def reap(
    tx: Tx, *, dead_peers: Sequence[str] = (), spare: int | None = None, lapsed: bool = True, anew: bool = False
) -> list[Reclaimed]:
    """Declare workers dead whose lease ran out, and reclaim their tasks.

    ``dead_peers``: incarnations that are dead whatever their lease; ``spare``: the caller's own worker id; ``lapsed``:
    leases that ran out count, too. ``anew``: the caller has lived longer than its row. Claims that another transaction
    held in an earlier call are reclaimed now.
    """
    # A worker whose row is locked is renewing its lease. The caller does not wait for it.
    dead = tx.run(
        f"UPDATE schedd_workers SET state = {worker_states.DEAD} WHERE id IN (SELECT t.id FROM schedd_workers t "
        f"WHERE t.state < {STOPPED} AND t.id <> :spare AND "
        "(t.lease_until < :before OR t.incarnation IN (SELECT value FROM "
        + ("json_each(:dead))" if tx.dialect.name == "sqlite" else "json_array_elements_text(CAST(:dead AS json)))")
        + f") {tx.dialect.skip_locked}) RETURNING heartbeat_at, lease_until",
        before=tx.now if lapsed else 0,
        spare=-1 if spare is None else spare,
        dead=msgspec.json.encode(list(dead_peers)).decode(),
    ).fetchall()
    if dead and not anew:
        fleet_starts.note_dead(tx, [(row.heartbeat_at, row.lease_until) for row in dead])
    found = tx.run(f"SELECT w.id, w.host, w.pid, w.incarnation, w.pools FROM {_DEAD_HOLDING}").fetchall()
    done = []
    for row in found:
        label = f"{row.host}:{row.pid} ({row.incarnation})"
        path = _noted_here(row)
        held_by_it = _reclaim(tx, row.id, label, begun(path) if path else set())
        done.append(held_by_it._replace(process=f"{row.host}:{row.pid}"))
    return done


def next_lapse(tx: Tx, spare: int | None) -> int:
    """When the next lease of another worker runs out; 0 if there is none."""
    ((found,),) = tx.rows(f"SELECT ({_NEXT_LAPSE})", spare=-1 if spare is None else spare)
    return int(found or 0)


def find_expired(tx: Tx, spare: int | None) -> tuple[int, bool]:
    """:func:`next_lapse`, and whether a dead worker still holds claims."""
    ((lapse, found),) = tx.rows(_FIND_EXPIRED, spare=-1 if spare is None else spare)
    return int(lapse or 0), bool(found)


def _reclaim(tx: Tx, worker: int, label: str, noted: Container[tuple[int, int]]) -> Reclaimed:
    """Make the claims of a dead worker claimable again; each task becomes a suspect.

    A task suspect twice runs next alone, and dying alone three times makes it a dead letter; bystanders are never
    blamed. One whose handler had begun has used its attempt, and ends if that was the last that its policy allows. A
    claim that never started gets its attempt back (by moving the base: the number still grows). ``noted``: (id, claim)
    of those that had begun although their rows do not say so yet.
    """
    rows = tx.run(
        "SELECT t.id, t.claim, t.attempt, t.attempt_base, t.max_attempts, t.state, t.claimed_at, t.started_at, "
        "t.kind, t.queue, t.lane, t.suspect, t.deaths, "
        "t.cancel_requested, t.dead_letter, t.rerun FROM schedd_tasks t "
        f"WHERE t.worker = :worker AND {held('t')} "
        f"ORDER BY t.id {tx.dialect.skip_locked}",
        worker=worker,
    ).fetchall()
    tasks, attempts, poisoned, spent, lost = [], [], [], [], []
    jobs = _jobs(tx, [r.id for r in rows])
    for r in rows:
        executor, phase, reason = jobs.get((r.id, r.claim), (None, None, None))
        error = f"lost: worker {label} died or lost its lease"
        if executor is not None and reason is not None:
            error = f"{error}; executor {executor} says: {reason}"
        alone = r.lane.startswith(QUARANTINE_LANE)
        deaths = r.deaths + (1 if alone else 0)
        lane, text = r.lane, error
        began = known = r.state == RUNNING or (r.id, r.claim) in noted
        if began:
            used = phase != PlacementPhase.PREEMPTED.code
            lost.append(LostAttempt(r.id, r.claim, r.attempt, r.claimed_at, r.started_at, r.kind, r.queue, used))
        if phase == PlacementPhase.PREEMPTED.code:  # the task is not to blame, nor is its attempt used
            alone, deaths, began = False, r.deaths, False
        end = AttemptEnd.LOST
        if r.rerun == 1:
            state = SCHEDULED  # as its replacement, which is not known to kill workers
        elif r.cancel_requested is not None:
            state = CANCELLED
        elif deaths >= DEATHS_ALONE:
            state = DEAD if r.dead_letter else FAILED
            text = f"killed its worker {deaths} times while running alone; last: {label}"
            poisoned.append(r.id)
        elif began and is_spent(r.attempt - r.attempt_base, r.max_attempts):
            state = DEAD if r.dead_letter else FAILED
            text = f"{error} in the last attempt of {r.max_attempts}"
            spent.append(r.id)
        else:
            state = SCHEDULED
            if r.suspect + 1 >= SUSPECT_TWICE and not alone:
                lane = QUARANTINE_LANE + lane
        refund = 0 if began else 1
        tasks.append((r.id, state, lane, deaths, refund, text if state in (DEAD, FAILED) else None))
        said = text if known else f"{text}; it is not known to have begun, and used no attempt"
        attempts.append((r.id, r.claim, r.attempt, r.claimed_at, r.started_at, end.code, said))
    ends = {t[0]: END_BIT[TaskState.from_code(t[1])] for t in tasks if t[1] >= FIRST_TERMINAL}
    replaced = [r.id for r in rows if r.rerun]
    ends |= {i: ends.get(i, 0) | BROKEN_BITS for i in replaced}
    if ends and tx.dialect.skip_locked:
        # Another transaction holds what waits for them: they stay claimed until a later call.
        blocked = lock_descendants(tx, ends).blocked | blocked_replacements(tx, replaced)
        tasks = [t for t in tasks if t[0] not in blocked]
        attempts = [a for a in attempts if a[0] not in blocked]
        poisoned = [p for p in poisoned if p not in blocked]
        spent = [s for s in spent if s not in blocked]
        lost = [one for one in lost if one.task_id not in blocked]
    if tasks:
        _write_back(tx, worker, tasks, attempts)
    ended = {t[0]: TaskState.from_code(t[1]) for t in tasks if t[1] >= FIRST_TERMINAL}
    if ended:
        release(tx, ended.items())
    if replaced:
        apply_deferred(tx, [t[0] for t in tasks])
    return Reclaimed(worker, label, len(tasks), tuple(poisoned), tuple(spent), tuple(lost))


def _jobs(tx: Tx, ids: Sequence[int]) -> dict[tuple[int, int], tuple[str, int | None, str | None]]:
    """What engines say of the jobs that ran these tasks: executor, phase and reason, by (task id, claim)."""
    if not ids:
        return {}
    rows = tx.run(
        f"SELECT task_id, claim, executor, phase, reason FROM schedd_placements WHERE task_id IN {tx.dialect.ids()}",
        ids=bind_rows(ids),
    )
    return {(row.task_id, row.claim): (row.executor, row.phase, row.reason) for row in rows}


def _write_back(
    tx: Tx,
    worker: int,
    tasks: Sequence[tuple[int, int, str, int, int, str | None]],
    attempts: Sequence[tuple[object, ...]],
) -> None:
    columns: dict[str, type] = {
        "id": int,
        "state": int,
        "lane": str,
        "deaths": int,
        "refund": int,
        "error": str,
    }
    tx.run(
        "UPDATE schedd_tasks SET state = j.state, "
        "worker = NULL, lane = j.lane, deaths = j.deaths, suspect = schedd_tasks.suspect + 1, "
        "attempt_base = schedd_tasks.attempt_base + j.refund, "
        f"finished_at = CASE WHEN j.state >= {FIRST_TERMINAL} THEN :now ELSE schedd_tasks.finished_at END, "
        f"held_key = CASE WHEN j.state >= {FIRST_TERMINAL} THEN NULL ELSE schedd_tasks.held_key END, "
        "error = coalesce(j.error, schedd_tasks.error), "
        "error_class = CASE WHEN j.error IS NULL THEN schedd_tasks.error_class ELSE 'WorkerDied' END, "
        "fingerprint = CASE WHEN j.error IS NULL THEN schedd_tasks.fingerprint END, "
        "status_code = CASE WHEN j.error IS NULL THEN schedd_tasks.status_code END "
        f"FROM {tx.dialect.rows(columns)} j WHERE schedd_tasks.id = j.id AND schedd_tasks.worker = :worker",
        rows=bind_rows(tasks),
        now=tx.now,
        worker=worker,
    )
    columns = {
        "task_id": int,
        "claim": int,
        "number": int,
        "claimed_at": int,
        "started_at": int,
        "outcome": int,
        "error": str,
    }
    names = ", ".join(columns)
    tx.run(
        f"INSERT INTO schedd_attempts (worker, finished_at, {names}) SELECT :worker, :now, {names} "
        f"FROM {tx.dialect.rows(columns)} j WHERE true ON CONFLICT (task_id, claim) DO NOTHING",
        rows=bind_rows(attempts),
        now=tx.now,
        worker=worker,
    )
