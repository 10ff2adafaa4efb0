"""Handlers without a heartbeat: finds them and reclaims their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import CANCELLED, DEAD, END_BIT, FAILED, FIRST_TERMINAL, RUNNING, SCHEDULED, TaskState
from scheduler.store.broken_rows import options_of
from scheduler.store.db.dialect import bind_rows, fence
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import HELD, IS_HELD

if TYPE_CHECKING:
    import sqlalchemy as sa

MIN_STALLED_ATTEMPTS = 3  # a task ends because of stalls only after this many attempts, whatever its budget


class Stalled(NamedTuple):
    """A running task that has been quiet for longer than its kind allows. Spans are microseconds."""

    id: int
    kind: str
    worker: int
    quiet: int
    stall_after: int


def remedy(task: str) -> str:
    """The advice for an operator. ``task``: its id, or a word for it."""
    return f'`schedctl cancel --force {task}` ends it, and on_stall="reclaim" of its kind has it taken back'


def stalled(tx: Tx) -> list[Stalled]:
    """The running tasks without a heartbeat for their kind's ``stall_after``, the quietest first."""
    rows = tx.run("SELECT name, options FROM schedd_kinds").fetchall()
    spans = {row.name: options_of(row.options).get("stall_after") for row in rows}
    spans = {name: span for name, span in spans.items() if span is not None}
    if not spans:
        return []
    running = tx.run(
        "SELECT id, kind, worker, started_at, last_heartbeat_at FROM schedd_tasks "
        f"WHERE {HELD} AND state = {RUNNING} AND started_at IS NOT NULL"
    ).fetchall()
    found = []
    for row in running:
        quiet, span = tx.now - max(row.started_at, row.last_heartbeat_at or 0), spans.get(row.kind)
        if span is not None and quiet >= span:
            found.append(Stalled(row.id, row.kind, row.worker, quiet, span))
    return sorted(found, key=lambda one: (-one.quiet, one.id))


class ReclaimedStalls(NamedTuple):
    """``again``: (id, claim) that run again; ``ended``: id -> end of those that do not."""

    again: list[tuple[int, int]]
    ended: dict[int, TaskState]


def reclaim(
    tx: Tx,
    worker: int,
    claims: Sequence[tuple[int, int, int, str]],
    *,
    end: AttemptEnd = AttemptEnd.LOST,
    error_class: str = "Stalled",
) -> ReclaimedStalls:
    """Reclaim these tasks from their handlers: rows (id, claim, started_at, text).

    ``end``, ``error_class``: how the attempts are recorded.

    The attempt counts and is recorded as lost; the task is due again at once. It ends dead when its budget is used up,
    though not before its third attempt: a handler that is always slower than declared must not run for ever.
    Skips claims whose rows or dependants another transaction holds; a later call takes them.
    """
    from scheduler.store.graph.descendants import BROKEN_BITS
    from scheduler.store.graph.release import release
    from scheduler.store.tasks.outcome_locks import lock_descendants
    from scheduler.store.tasks.replace import apply_deferred, blocked_replacements

    source = tx.dialect.rows({"id": int, "claim": int, "started": int, "text": str})
    rows = tx.run(
        "SELECT t.id, t.claim, t.attempt, t.attempt_base, t.max_attempts, t.dead_letter, t.claimed_at, "
        "t.cancel_requested, t.rerun, j.started, j.text "
        f"FROM {source} j JOIN schedd_tasks t ON t.id = j.id WHERE {fence(IS_HELD)} "
        f"ORDER BY t.id {tx.dialect.skip_locked}",
        rows=bind_rows(claims),
        worker=worker,
    ).fetchall()
    states = {row.id: _next(row) for row in rows}
    ends = {i: END_BIT[TaskState.from_code(state)] for i, state in states.items() if state >= FIRST_TERMINAL}
    replaced = [row.id for row in rows if row.rerun]
    ends |= {i: ends.get(i, 0) | BROKEN_BITS for i in replaced}
    if ends and tx.dialect.skip_locked:
        blocked = lock_descendants(tx, ends).blocked | blocked_replacements(tx, replaced)
        rows = [row for row in rows if row.id not in blocked]
    if not rows:
        return ReclaimedStalls([], {})
    _write(tx, worker, rows, states, end, error_class)
    ended = {row.id: TaskState.from_code(states[row.id]) for row in rows if states[row.id] >= FIRST_TERMINAL}
    release(tx, ended.items())
    if replaced:
        apply_deferred(tx, [row.id for row in rows])
    return ReclaimedStalls([(row.id, row.claim) for row in rows], ended)


def _next(row: sa.Row[tuple[int, ...]]) -> int:
    if row.rerun == 1:
        return SCHEDULED  # as what replaced it meanwhile
    if row.cancel_requested is not None:
        return CANCELLED
    used = row.attempt - row.attempt_base
    if row.max_attempts is not None and used >= max(row.max_attempts, MIN_STALLED_ATTEMPTS):
        return DEAD if row.dead_letter else FAILED
    return SCHEDULED


def _write(
    tx: Tx,
    worker: int,
    rows: Sequence[sa.Row[tuple[int, ...]]],
    states: dict[int, int],
    end: AttemptEnd,
    error_class: str,
) -> None:
    source = tx.dialect.rows({"id": int, "state": int, "error": str})
    failed = (DEAD, FAILED)
    tasks = [(row.id, states[row.id], row.text if states[row.id] in failed else None) for row in rows]
    tx.run(
        "UPDATE schedd_tasks SET state = j.state, worker = NULL, suspect = 0, "
        "lane = ltrim(schedd_tasks.lane, '!'), "
        f"finished_at = CASE WHEN j.state >= {FIRST_TERMINAL} THEN :now ELSE schedd_tasks.finished_at END, "
        f"held_key = CASE WHEN j.state >= {FIRST_TERMINAL} THEN NULL ELSE schedd_tasks.held_key END, "
        "error = coalesce(j.error, schedd_tasks.error), "
        "error_class = CASE WHEN j.error IS NULL THEN schedd_tasks.error_class ELSE 'Stalled' END, "
        "fingerprint = CASE WHEN j.error IS NULL THEN schedd_tasks.fingerprint END, "
        "status_code = CASE WHEN j.error IS NULL THEN schedd_tasks.status_code END "
        f"FROM {source} j WHERE schedd_tasks.id = j.id",
        rows=bind_rows(tasks),
        now=tx.now,
    )
    columns = {"task_id": int, "claim": int, "number": int, "claimed_at": int, "started_at": int, "error": str}
    names = ", ".join(columns)
    attempts = [(row.id, row.claim, row.attempt, row.claimed_at, row.started, row.text) for row in rows]
    tx.run(
        f"INSERT INTO schedd_attempts (worker, finished_at, outcome, error_class, {names}) "
        f"SELECT :worker, :now, {end.code}, '{error_class}', {names} FROM {tx.dialect.rows(columns)} j "
        "WHERE true ON CONFLICT (task_id, claim) DO NOTHING",
        rows=bind_rows(attempts),
        now=tx.now,
        worker=worker,
    )
