"""``conflict="replace"``: a new set of payload, options, envelope and edges for the same id.

It applies at once while no worker holds the task. Else it is deferred (``rerun`` 1, a side value): the transaction that
records the attempt's end applies it. ``rerun`` 2: cancelled after it was replaced; the task ends, and a retry uses the
new set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from scheduler.model.spec import TaskSpec
from scheduler.model.state import CANCELLED, DEAD, FAILED, FIRST_TERMINAL, TaskState
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.graph.release import release
from scheduler.store.predicates import HELD
from scheduler.store.tasks import envelopes
from scheduler.store.tasks.keys import KeyHolder
from scheduler.store.tasks.row import COLUMNS, Placed, edge_row, insert_edges, insert_values, read_parents, row_of

log = logging.getLogger("scheduler.store")

_ASIDE = "replacement"
# The id, the schedule's slot, the lineage and the counts of claims and attempts stay.
_KEPT = ("id", "kind", "key", "held_key", "schedule", "slot", "slot_tz", "missed", "missed_since")
_TAKEN = tuple(name for name in COLUMNS if name not in _KEPT)
_REPLACE = (
    f"UPDATE schedd_tasks SET {', '.join(f'{name} = :{name}' for name in _TAKEN if name != 'extras')}, "
    "extras = CASE WHEN original_id IS NULL AND schedule IS NULL THEN :extras ELSE :extras | 1 END, "
    "held_key = CASE WHEN :live = 1 THEN held_key END, cancel_requested = :cancelled, cancel_cascade = 0, "
    "attempt_base = attempt, worker = NULL, rerun = 0, suspect = 0, deaths = 0, claimed_at = NULL, "
    "started_at = NULL, progress = NULL, progress_message = NULL, last_heartbeat_at = NULL, result = NULL, "
    "result_until = NULL, kept_until = NULL, key_until = NULL, fingerprint = NULL, status_code = NULL WHERE id = :id"
)


class _PendingReplacement(msgspec.Struct):
    """``at``: when it was replaced (microseconds); ``before``: the parents of the set that runs."""

    at: int
    spec: TaskSpec
    before: list[int]


def replace_now(
    tx: Tx, task_id: int, spec: TaskSpec, placed: Placed, *, made: int | None = None, cancelled: int | None = None
) -> None:
    """Give a task that no worker holds another set. ``spec.edges`` name stored tasks, and ``placed`` is what they say:
    if that ends the task at once, the caller releases what waits for it.

    ``made``: when the set was, if not now; ``cancelled``: the task has ended so at this instant, and stays ended.
    """
    envelopes.keep(tx, task_id)
    values = row_of(spec, tx.now, placed, made)
    if cancelled is not None:
        values |= {"state": CANCELLED, "finished_at": cancelled}
        values |= dict.fromkeys(("error", "error_class", "ended_by", "check_at"))
    live = int(values["state"] < FIRST_TERMINAL)
    bound = {name: values[name] for name in _TAKEN}
    tx.rows(_REPLACE, **(bound | {"id": task_id, "live": live, "cancelled": cancelled}))
    for sql in (
        f"DELETE FROM schedd_task_values WHERE task_id = :id AND name IN ('payload', 'result', '{_ASIDE}')",
        "DELETE FROM schedd_edges WHERE child = :id",
    ):
        tx.rows(sql, id=task_id)
    checkpoints.forget(tx, [task_id])  # steps of the old set
    if values["payload"] is None:
        insert_values(tx, [(task_id, "payload", spec.payload)])
    if spec.edges:
        insert_edges(tx, [edge_row(edge, task_id) for edge in spec.edges])


def debounced(tx: Tx, holder: KeyHolder, spec: TaskSpec) -> tuple[TaskSpec, int | None]:
    """The new set of a task that no worker holds, and when its first call was made, if the set is debounced.

    The calls before a task's first attempt are of one run: the last one counts, and the first one's time bounds it.
    """
    if spec.debounce is None or holder.state not in (TaskState.SCHEDULED, TaskState.WAITING):
        return spec, None
    ((made,),) = tx.rows("SELECT created_at FROM schedd_tasks WHERE id = :id", id=holder.id)
    return msgspec.structs.replace(spec, run_at=_due(spec, tx.now, made), delay=0), made


def _due(spec: TaskSpec, now: int, made: int) -> int:
    """When the set is due that was first asked for at ``made``."""
    due = max(spec.run_at, now + spec.delay)
    return due if spec.debounce is None else min(due, made + spec.debounce)


def defer_replacement(tx: Tx, task_id: int, spec: TaskSpec) -> None:
    """Defer this set: the held task runs once more with it, after its present attempt.

    The edges are stored beside those of the set that runs, so that no cycle closes over them and no parent is removed.
    """
    present = tx.rows(f"SELECT value FROM schedd_task_values WHERE task_id = :id AND name = '{_ASIDE}'", id=task_id)
    parents = tx.rows("SELECT parent FROM schedd_edges WHERE child = :id", id=task_id)
    earlier = msgspec.json.decode(present[0][0], type=_PendingReplacement) if present else None
    before = [row[0] for row in parents] if earlier is None else earlier.before
    tx.rows(
        f"DELETE FROM schedd_edges WHERE child = :id AND parent NOT IN {tx.dialect.ids()}",
        id=task_id,
        ids=bind_rows(before),
    )
    if spec.edges:
        insert_edges(tx, [edge_row(edge, task_id) for edge in spec.edges])
    made = tx.now if earlier is None or spec.debounce is None else earlier.at
    spec = msgspec.structs.replace(spec, run_at=_due(spec, tx.now, made), delay=0)
    text = msgspec.json.encode(_PendingReplacement(made, spec, before)).decode()
    tx.rows(f"DELETE FROM schedd_task_values WHERE task_id = :id AND name = '{_ASIDE}'", id=task_id)
    insert_values(tx, [(task_id, _ASIDE, text)])
    tx.rows("UPDATE schedd_tasks SET rerun = 1 WHERE id = :id", id=task_id)


def apply_deferred(tx: Tx, ids: Iterable[int]) -> None:
    """Apply the deferred replacements of these tasks, whose attempts are recorded.

    Call it after the release of dependents of tasks that ended in the same transaction.
    """
    rows = tx.run(
        "SELECT t.id, t.state, t.finished_at, v.value FROM schedd_tasks t "
        f"LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = '{_ASIDE}' "
        f"WHERE t.id IN {tx.dialect.ids()} AND t.rerun > 0 ORDER BY t.id",
        ids=bind_rows(sorted(ids)),
    ).fetchall()
    for row in rows:
        try:
            aside = msgspec.json.decode(row.value or "", type=_PendingReplacement)
        except msgspec.MsgspecError as error:
            _set_aside(tx, row.id, f"its replacement cannot be read: {error}")
            continue
        spec = aside.spec
        parents = read_parents(tx, [edge.parent for edge in spec.edges], known=True)
        ended = row.finished_at if row.state == CANCELLED else None
        placed = parents.place(spec.edges)
        replace_now(tx, row.id, spec, placed, made=aside.at, cancelled=ended)
        if placed.end is not None and ended is None:
            release(tx, [(row.id, placed.end.state)])


def _set_aside(tx: Tx, task_id: int, error: str) -> None:
    log.error(error, extra={"task": task_id})
    tx.run(
        f"UPDATE schedd_tasks SET state = CASE WHEN dead_letter = 1 THEN {DEAD} ELSE {FAILED} END, "
        "rerun = 0, held_key = NULL, finished_at = :now, error = :error, error_class = 'PayloadError', "
        "fingerprint = NULL, status_code = NULL "
        "WHERE id = :id AND rerun > 0",
        id=task_id,
        now=tx.now,
        error=error[:2000],
    )
    release(tx, [(task_id, TaskState.DEAD)])


def repair_replacements(tx: Tx, ids: Sequence[int]) -> None:
    """Apply replacements left over on tasks that no worker holds; drop values without a task's mark."""
    held = tx.run(f"SELECT id FROM schedd_tasks WHERE id IN {tx.dialect.ids()} AND {HELD}", ids=bind_rows(ids))
    apply_deferred(tx, set(ids) - {row[0] for row in held})
    tx.run(
        f"DELETE FROM schedd_task_values WHERE task_id IN {tx.dialect.ids()} AND name = '{_ASIDE}' "
        "AND task_id IN (SELECT id FROM schedd_tasks WHERE rerun = 0)",
        ids=bind_rows(ids),
    )


def blocked_replacements(tx: Tx, ids: Sequence[int]) -> set[int]:
    """The replaced tasks for which :func:`apply_deferred` would have to wait for a lock on a parent.

    Locks the parents of the others until the transaction ends. Never waits.
    """
    if not ids or not tx.dialect.skip_locked:
        return set()
    edges = tx.run(
        "SELECT e.parent, e.child FROM schedd_edges e JOIN schedd_tasks p ON p.id = e.parent "
        f"WHERE e.child IN {tx.dialect.ids()}",
        ids=bind_rows(ids),
    ).fetchall()
    share = f"{tx.dialect.share} SKIP LOCKED"
    held = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()} ORDER BY t.id {share}",
        ids=bind_rows(sorted({edge.parent for edge in edges})),
    )
    got = {row[0] for row in held}
    return {edge.child for edge in edges if edge.parent not in got}


def cancel_rerun(tx: Tx, ids: Sequence[int]) -> None:
    """Cancel the deferred replacements of held tasks, too."""
    tx.run(f"UPDATE schedd_tasks SET rerun = 2 WHERE id IN {tx.dialect.ids()} AND rerun = 1", ids=bind_rows(ids))
