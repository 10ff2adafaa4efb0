"""Runs an ended task again whatever its end was, alone or with all that is below it."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.errors import InvalidTransitionError
from scheduler.model.state import FIRST_TERMINAL, SCHEDULED, TaskState
from scheduler.ports import FOREVER
from scheduler.store import audit
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.graph.descendants import all_below
from scheduler.store.tasks import keys
from scheduler.store.tasks.control import CLEAR, recount, with_keys
from scheduler.store.unknown import unknown

_LOCK = "SELECT t.id, t.state, t.claimed_at FROM schedd_tasks t WHERE {among} ORDER BY t.id {lock}"
_RERUN = f"""
UPDATE schedd_tasks SET {CLEAR}, run_at = CASE WHEN id = :root OR run_at >= {FOREVER} THEN :now ELSE run_at END
WHERE {{among}}
"""
_FORGET_RESULTS = "DELETE FROM schedd_task_values WHERE {among} AND name = 'result'"


def rerun(tx: Tx, task_id: int, *, downstream: bool = True) -> dict[int, keys.Other]:
    """Run an ended task again, from its beginning: its result and its recorded steps are forgotten.

    ``downstream``: whatever ended below it runs again after it, successes too. What has not begun below it waits for it
    again in either case. A descendant whose key is not free stays as it ended: returns these descendants, and who has
    their keys.

    Raises UnknownTaskError; InvalidTransitionError if it, or with ``downstream`` one below it, has begun and not ended;
    DuplicateKeyError if another task holds its key or has completed under it since.
    """
    ids = {task_id}
    while True:
        rows = _locked(tx, sorted(ids))
        if task_id not in rows:
            raise unknown(tx, task_id)
        found = {task_id, *all_below(tx, [task_id])} if downstream else ids
        if found <= ids:
            break
        ids |= found  # also what another transaction stored below it until these were locked
    _refuse_begun(rows, task_id)
    refused = keys.take(tx, [task_id])
    if refused:
        raise refused[task_id].error
    ended = [i for i, row in rows.items() if row[1] >= FIRST_TERMINAL and i != task_id]
    ended, left = with_keys(tx, ended)
    again = sorted([task_id, *ended])
    bound = {"ids": tx.dialect.bind_ids(again)}
    checkpoints.forget(tx, again)
    tx.rows(_FORGET_RESULTS.format(among=tx.dialect.among("task_id")), **bound)
    tx.rows(_RERUN.format(among=tx.dialect.among("id")), **bound, now=tx.now, root=task_id)
    recount(tx, again)
    before = TaskState.from_code(rows[task_id][1])
    tasks = {task_id: {"before": before}}
    audit.record(tx, "rerun", tasks=tasks, downstream=downstream, below=len(again) - 1)
    return left


def rerun_all(tx: Tx, ids: Sequence[int], *, downstream: bool = True) -> dict[int, keys.Other]:
    """:func:`rerun` for each of these; skips a task that came back with another one."""
    left: dict[int, keys.Other] = {}
    several = len(set(ids)) > 1
    before = {i: row[1] for i, row in _locked(tx, sorted(set(ids))).items()} if several else {}
    for task_id in sorted(set(ids)):  # parents are mostly older
        came_back = before.get(task_id, 0) >= FIRST_TERMINAL
        if came_back and _locked(tx, [task_id])[task_id][1] < FIRST_TERMINAL:
            continue
        left |= rerun(tx, task_id, downstream=downstream)
    return left


def _locked(tx: Tx, ids: Sequence[int]) -> dict[int, tuple[int, int, int | None]]:
    sql = _LOCK.format(among=tx.dialect.among("t.id"), lock=tx.dialect.lock)
    return {row[0]: (row[0], row[1], row[2]) for row in tx.rows(sql, ids=tx.dialect.bind_ids(ids))}


def _refuse_begun(rows: dict[int, tuple[int, int, int | None]], task_id: int) -> None:
    state = TaskState.from_code(rows[task_id][1])
    if not state.terminal:
        raise InvalidTransitionError(f"task {task_id} is {state}; it can be run again once it has ended")
    for other, code, claimed_at in rows.values():
        if SCHEDULED < code < FIRST_TERMINAL or (code == SCHEDULED and claimed_at is not None):
            raise InvalidTransitionError(
                f"task {other}, below task {task_id}, is {TaskState.from_code(code)} and has begun; "
                "cancel it, wait for it, or run the task again without what is below it"
            )
