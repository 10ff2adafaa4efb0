"""Changes of stored tasks: cancel, retry, add an edge, heartbeat, progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.errors import InvalidTransitionError
from scheduler.model.spec import EdgeSpec
from scheduler.model.state import CANCELLED, CLAIMED, FAILED, FIRST_TERMINAL, SCHEDULED, WAITING, TaskState
from scheduler.ports import FOREVER
from scheduler.store import audit
from scheduler.store.db.dialect import bind_rows, fence
from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints
from scheduler.store.graph import spawned
from scheduler.store.graph.cancel_cascade import below
from scheduler.store.graph.cycles import lock_graph, refuse_cycle
from scheduler.store.graph.descendants import ended_below
from scheduler.store.graph.release import break_only, release
from scheduler.store.predicates import HELD, IS_HELD, bind_parents, from_parents, is_live, recorded, same, state_of
from scheduler.store.tasks import keys
from scheduler.store.tasks.attempts import write_values
from scheduler.store.tasks.claim import HAS_PARENTS
from scheduler.store.tasks.replace import cancel_rerun
from scheduler.store.tasks.row import edge_row, insert_edges, read_parents
from scheduler.store.unknown import unknown

if TYPE_CHECKING:
    import sqlalchemy as sa


class CancelResult(NamedTuple):
    """What a cancel did, by task id.

    ``cancelled``: ended now. ``requested``: running, will end. ``finished``: had ended before. ``affected``: dependants
    and spawned tasks that ended because of it, cancelled or by *otherwise*. ``later``: dependants that a cascade
    cancels once the running tasks have ended.
    """

    cancelled: tuple[int, ...]
    requested: tuple[int, ...]
    finished: dict[int, TaskState]
    affected: tuple[int, ...]
    later: tuple[int, ...] = ()


def _lock(tx: Tx, ids: Sequence[int]) -> dict[int, sa.Row[tuple[int, int]]]:
    rows = tx.run(
        f"SELECT t.id, t.state, t.claimed_at FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()} "
        f"ORDER BY t.id {tx.dialect.lock}",
        ids=bind_rows(sorted(set(ids))),
    ).fetchall()
    return {row.id: row for row in rows}


_DOWN = {
    "sqlite": "WITH RECURSIVE down(id) AS (SELECT CAST(value AS integer) FROM json_each(:ids) "
    f"UNION SELECT e.child FROM down d CROSS JOIN schedd_edges e WHERE e.parent = d.id AND {is_live('e.child')}) "
    "SELECT id FROM down ORDER BY id",
    "postgresql": "WITH RECURSIVE down(id) AS ("
    "SELECT CAST(value AS bigint) FROM json_array_elements_text(CAST(:ids AS json)) "
    "UNION SELECT e.child FROM down d CROSS JOIN LATERAL "
    f"(SELECT e.child FROM schedd_edges e WHERE {same('e.parent', 'd.id')} OFFSET 0) e WHERE {is_live('e.child')}) "
    "SELECT id FROM down ORDER BY id",
}


def _dependants(tx: Tx, ids: Sequence[int]) -> list[int]:
    """Live descendants of ``ids`` along edges, without ``ids``."""
    rows = tx.run(_DOWN[tx.dialect.name], ids=bind_rows(ids))
    own = set(ids)
    return [row[0] for row in rows if row[0] not in own]


def cancel(tx: Tx, ids: Sequence[int], *, cascade: bool = False, force: bool = False) -> CancelResult:
    """End what is not running at once; ask what is running to end. Raises UnknownTaskError for the first unknown id.

    ``force``: the worker ends what is running without waiting for its handler, which keeps its slot until it ends.

    ``cascade``: what waits for the success of one of them ends cancelled, too, at the moment that the one does.
    """
    wanted = list(dict.fromkeys(ids))
    rows = _lock(tx, wanted)
    if cascade and tx.dialect.lock:  # every transaction locks what it will write in one order, before it writes
        open_ids = [i for i, row in rows.items() if row.state < CLAIMED]
        rows |= _lock(tx, [*wanted, *below(tx, open_ids)])
    for task_id in wanted:
        if task_id not in rows:
            raise unknown(tx, task_id)
    states = {i: TaskState.from_code(row.state) for i, row in rows.items()}
    finished = {i: states[i] for i in wanted if states[i].terminal}
    live = [i for i in wanted if not states[i].terminal]
    bound = {"ids": bind_rows(live), "now": tx.now, "cascade": int(cascade)}
    asks = "cancel_cascade = CASE WHEN :cascade = 1 THEN 1 ELSE cancel_cascade END"
    requested = tx.run(
        f"UPDATE schedd_tasks SET cancel_requested = coalesce(cancel_requested, :now), {asks} "
        f"WHERE id IN {tx.dialect.ids()} AND {HELD} RETURNING id, claim",
        **bound,
    ).fetchall()
    if requested and force:
        write_values(tx, [(row.id, f"{_FORCE}{row.claim}", str(tx.now)) for row in requested])
    if requested:
        cancel_rerun(tx, [row[0] for row in requested])
    ended = tx.run(
        f"UPDATE schedd_tasks SET state = {CANCELLED}, cancel_requested = :now, finished_at = :now, {asks}, "
        f"held_key = NULL WHERE id IN {tx.dialect.ids()} AND state < {CLAIMED} RETURNING id",
        **bound,
    ).fetchall()
    cancelled = [row[0] for row in ended]
    before = set(_dependants(tx, cancelled)) | spawned.below(tx, cancelled)
    down = below(tx, cancelled) if cascade else {}
    running = sorted({row[0] for row in requested} | {i for i, state in down.items() if state >= CLAIMED})
    release(tx, [(i, TaskState.CANCELLED) for i in cancelled])
    affected = sorted(_terminal_among(tx, before) - set(cancelled))
    changed = {i: {"before": states[i]} for i in sorted({*cancelled, *(row[0] for row in requested)})}
    how: dict[str, Any] = {"cascade": cascade or None, "force": force or None, "dependants": len(affected) or None}
    audit.record(tx, "cancel", tasks=changed, **how)
    return CancelResult(
        tuple(sorted(cancelled)),
        tuple(running),
        finished,
        tuple(affected),
        tuple(sorted(below(tx, running, through_held=True))) if cascade else (),
    )


def _terminal_among(tx: Tx, ids: set[int]) -> set[int]:
    if not ids:
        return set()
    rows = tx.run(
        f"SELECT id FROM schedd_tasks WHERE id IN {tx.dialect.ids()} AND state >= {FIRST_TERMINAL}",
        ids=bind_rows(sorted(ids)),
    )
    return {row[0] for row in rows}


def retry(tx: Tx, task_id: int, *, downstream: bool = True) -> dict[int, keys.Other]:
    """Run a task again that failed, died, was cancelled or skipped, with its whole budget; revive what it ended.

    Returns what :func:`reopen` left as it is. Raises UnknownTaskError, InvalidTransitionError; DuplicateKeyError if
    another task holds its key or has completed under it since.
    """
    row = _lock(tx, [task_id]).get(task_id)
    if row is None:
        raise unknown(tx, task_id)
    state = TaskState.from_code(row.state)
    if state in (TaskState.RETRY, TaskState.SCHEDULED):
        due = "CASE WHEN run_at < :now THEN run_at ELSE :now END"  # an overdue task keeps its place
        looked_at = "CASE WHEN check_at > :now THEN :now ELSE check_at END"  # max_delay counts from now on
        _set(tx, task_id, f"run_at = {due}, attempt_base = attempt, check_at = {looked_at}")
        checkpoints.reconsider(tx, [task_id])
        audit.record(tx, "retry", tasks={task_id: {"before": state}})
        return {}
    if state is TaskState.SUCCESS:
        raise InvalidTransitionError(
            f"task {task_id} has succeeded; only what failed or was cancelled can be retried: rerun it instead"
        )
    if not state.terminal:
        raise InvalidTransitionError(f"task {task_id} is {state}; it can be retried once it has ended")
    left = reopen(tx, task_id, downstream=downstream)
    alone = None if downstream else False
    audit.record(tx, "retry", tasks={task_id: {"before": state}}, downstream=alone)
    return left


def retry_all(tx: Tx, ids: Sequence[int], *, downstream: bool = True) -> dict[int, keys.Other]:
    """:func:`retry` for each of these; skips a task that came back with another one."""
    left: dict[int, keys.Other] = {}
    several = len(set(ids)) > 1
    ended = {i for i, row in _lock(tx, ids).items() if row.state >= FIRST_TERMINAL} if several else ()
    for task_id in sorted(set(ids)):  # parents are mostly older, and a child is judged by them
        if task_id in ended and _lock(tx, [task_id])[task_id].state < FIRST_TERMINAL:
            continue
        left |= retry(tx, task_id, downstream=downstream)
    return left


def _set(tx: Tx, task_id: int, what: str) -> None:
    tx.run(f"UPDATE schedd_tasks SET {what} WHERE id = :id", id=task_id, now=tx.now)


CLEAR = (
    f"state = {WAITING}, cancel_requested = NULL, cancel_cascade = 0, ended_by = NULL, finished_at = NULL, "
    "claimed_at = NULL, "
    "started_at = NULL, "
    "error = NULL, error_class = NULL, fingerprint = NULL, status_code = NULL, suspect = 0, deaths = 0, "
    "lane = ltrim(lane, '!'), result = NULL, result_until = NULL, kept_until = NULL, attempt_base = attempt, "
    "progress = NULL, progress_message = NULL, last_heartbeat_at = NULL, expires_at = :now + max_duration, "
    "check_at = CASE WHEN max_duration IS NULL AND max_delay IS NULL THEN NULL ELSE :now END"
)


def reopen(tx: Tx, task_id: int, *, downstream: bool) -> dict[int, keys.Other]:
    """Bring an ended task back to life; in one transaction, with the descendants that ended because of it.

    Descendants whose ``ended_by`` chain leads here wait again, and what was cancelled with the task that had spawned it
    goes on; unmet counts of everything that waits on something reopened are made anew from edges and parents' states,
    and edges are judged again. Children that have started are never touched. What they awaited in vain is forgotten.

    A descendant whose key is not free any more stays as it ended, and so does what ended because of that: returns
    these descendants, and who has their keys. Raises DuplicateKeyError if it is the task's own key; then nothing is
    changed.
    """
    refused = keys.take(tx, [task_id])
    if refused:
        raise refused[task_id].error
    return _reopen(tx, [task_id], downstream=downstream)


def reopen_all(tx: Tx, ids: Sequence[int]) -> tuple[list[int], dict[int, keys.Other]]:
    """:func:`reopen` for many ended tasks that the caller has locked. Returns those that live again, and what stays as
    it ended because of its key."""
    back, refused = with_keys(tx, sorted(ids))
    return back, refused | _reopen(tx, back, downstream=True)


def _reopen(tx: Tx, ids: list[int], *, downstream: bool) -> dict[int, keys.Other]:
    ended_with = spawned.cancelled_with(tx, ids) if downstream else []
    tx.run(
        f"UPDATE schedd_tasks SET {CLEAR}, run_at = :now WHERE {tx.dialect.among('id')}",
        ids=tx.dialect.bind_ids(ids),
        now=tx.now,
    )
    revived = level = ids
    left: dict[int, keys.Other] = {}
    while downstream and (ended := sorted({*ended_below(tx, level), *ended_with})):
        ended, refused = with_keys(tx, ended)
        left |= refused
        ended_with = spawned.cancelled_with(tx, ended)
        # A task that another transaction has revived meanwhile may be running already.
        cleared = tx.run(
            f"UPDATE schedd_tasks SET {CLEAR}, run_at = CASE WHEN run_at >= {FOREVER} THEN :now ELSE run_at END "
            f"WHERE id IN {tx.dialect.ids()} AND state >= {FIRST_TERMINAL} RETURNING id",
            ids=bind_rows(ended),
            now=tx.now,
        )
        level = sorted(row[0] for row in cleared)  # another transaction may have stored descendants until then
        revived = revived + level
    checkpoints.reconsider(tx, revived)
    recount(tx, revived)
    return left


def with_keys(tx: Tx, ended: list[int]) -> tuple[list[int], dict[int, keys.Other]]:
    """Those of these that may run again, now with their keys; and those whose keys are not free. What ended because of
    the latter is among neither."""
    left: dict[int, keys.Other] = {}
    while refused := keys.take(tx, ended):
        left |= refused
        stays = {*left, *ended_below(tx, list(left))}
        ended = [task_id for task_id in ended if task_id not in stays]
    return ended, left


# Snoozed, handed back and reclaimed tasks are scheduled, too, but their edges were met once and for all.
_UNSTARTED = f"(t.state = {WAITING} OR (t.state = {SCHEDULED} AND t.claimed_at IS NULL))"


def recount(tx: Tx, changed: Sequence[int]) -> None:
    """Recount ``unmet`` of these tasks and their unstarted children; judge their edges again."""
    below_them = tx.rows(
        f"SELECT child FROM schedd_edges WHERE {from_parents(tx.dialect)}", **bind_parents(tx.dialect, changed)
    )
    # No transaction adds an edge from one that lives again meanwhile: it reads the row first, which is held.
    wanted = sorted({*changed, *(row[0] for row in below_them)})
    affected = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE {_UNSTARTED} AND {tx.dialect.among('t.id')} "
        f"ORDER BY t.id {tx.dialect.lock}",
        ids=tx.dialect.bind_ids(wanted),
    ).fetchall()
    ids = [row[0] for row in affected]
    bound = {"ids": tx.dialect.bind_ids(ids)}
    above = tx.rows(f"SELECT DISTINCT parent FROM schedd_edges WHERE {tx.dialect.among('child')}", **bound)
    # Held: one must not end between the count and the commit, since who finishes it does not see these wait yet.
    parents = read_parents(tx, sorted(row[0] for row in above), known=True)
    # An edge on a task that retention removed counts by its recorded outcome; without one, as failed.
    how = f"coalesce({state_of('e.parent')}, {recorded('e.parent')}, {FAILED})"
    bit = f"CASE {how} WHEN 6 THEN 1 WHEN 7 THEN 2 WHEN 8 THEN 2 WHEN 9 THEN 4 WHEN 10 THEN 8 ELSE 0 END"
    tx.run(
        "WITH d AS MATERIALIZED (SELECT i.id, (SELECT CAST(count(*) AS integer) FROM schedd_edges e "
        f"WHERE e.child = i.id AND (e.ok & {bit}) = 0) AS n FROM schedd_tasks i WHERE {tx.dialect.among('i.id')}) "
        "UPDATE schedd_tasks SET unmet = d.n, state = CASE WHEN d.n = 0 THEN 1 ELSE 0 END, "
        f"extras = extras | CASE WHEN d.n > 0 THEN {HAS_PARENTS} ELSE 0 END FROM d "
        f"WHERE schedd_tasks.id = d.id AND schedd_tasks.state <= {SCHEDULED}",
        **bound,
    )
    ends = {task_id: end for task_id, end in parents.ends.items() if end is not None}
    # Satisfied edges are counted already; a broken one ends its child again, and that child's children after it.
    break_only(tx, ends, parents.removed)


def add_dependency(tx: Tx, child: int, edge: EdgeSpec) -> None:
    """Let a stored task that has not been claimed wait for another one.

    Raises UnknownTaskError, UnknownDependencyError, CycleError, InvalidTransitionError.
    """
    parent = edge.parent
    lock_graph(tx)
    row = _lock(tx, [child]).get(child)
    if row is None:
        raise unknown(tx, child)
    state = TaskState.from_code(row.state)
    if state not in (TaskState.WAITING, TaskState.SCHEDULED):
        raise InvalidTransitionError(f"task {child} is {state}; only a waiting or scheduled task can get a dependency")
    if row.claimed_at is not None:
        raise InvalidTransitionError(f"task {child} has started; it cannot get a dependency any more")
    read_parents(tx, [parent])
    refuse_cycle(tx, child, [parent])
    tx.run("DELETE FROM schedd_edges WHERE parent = :parent AND child = :child", parent=parent, child=child)
    insert_edges(tx, [edge_row(edge, child)])
    recount(tx, [child])
    made = {"parent": parent, "when": edge.when.value, "otherwise": edge.otherwise.value}
    audit.record(tx, "dependency added", tasks=[child], after=made)


def set_retry_policy(tx: Tx, task_id: int, retry: str | None, max_attempts: int | None) -> None:
    """Change the policy of a task that has not ended. Raises UnknownTaskError, InvalidTransitionError."""
    row = _lock(tx, [task_id]).get(task_id)
    if row is None:
        raise unknown(tx, task_id)
    if row.state >= FIRST_TERMINAL:
        raise InvalidTransitionError(f"task {task_id} is {TaskState.from_code(row.state)}; it has ended")
    tx.run(
        "UPDATE schedd_tasks SET retry = :retry, max_attempts = :max WHERE id = :id",
        id=task_id,
        retry=retry,
        max=max_attempts,
    )
    audit.record(tx, "patch", tasks=[task_id], after={"retry": retry})


def stamp(tx: Tx, worker: int, beats: Sequence[tuple[int, int, float | None, str | None]]) -> set[tuple[int, int]]:
    """Heartbeats and progress, under the fence: rows (id, claim, percent, message). Returns (id, claim) still held.

    Of several for one claim the newest values count. A row that another transaction has locked counts as held;
    a later call stamps it.
    """
    newest: dict[tuple[int, int], tuple[float | None, str | None]] = {}
    for task_id, claim, percent, message in beats:
        before = newest.get((task_id, claim), (None, None))
        newest[task_id, claim] = (
            before[0] if percent is None else percent,
            before[1] if message is None else message,
        )
    rows = tx.dialect.rows({"id": int, "claim": int, "percent": float, "message": str})
    bound = {"worker": worker, "rows": bind_rows([(*key, *value) for key, value in newest.items()]), "now": tx.now}
    held = fence(IS_HELD)
    found = tx.run(
        f"SELECT t.id, t.claim FROM {rows} j JOIN schedd_tasks t ON t.id = j.id WHERE {held}", **bound
    ).fetchall()
    values = (
        "last_heartbeat_at = :now, progress = coalesce(j.percent, t.progress), "
        "progress_message = coalesce(j.message, t.progress_message)"
    )
    if tx.dialect.name == "sqlite":
        sql = f"UPDATE schedd_tasks AS t SET {values} FROM {rows} j WHERE t.id = j.id AND {held}"
    else:
        sql = (
            f"WITH j AS MATERIALIZED (SELECT t.id, j.percent, j.message FROM {rows} j "
            f"JOIN schedd_tasks t ON t.id = j.id WHERE {held} ORDER BY t.id FOR UPDATE OF t SKIP LOCKED) "
            f"UPDATE schedd_tasks t SET {values} FROM j WHERE t.id = j.id"
        )
    tx.run(sql, **bound)
    return {(row[0], row[1]) for row in found}


_FORCE = "force:"  # and the claim: the name of the value that says that this claim is to be ended by force


def forced(tx: Tx, asked: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these claims (id, claim) that are to end without their handlers."""
    ids = tx.dialect.ids()
    sql = f"SELECT v.task_id, v.name FROM schedd_task_values v WHERE v.task_id IN {ids} AND v.name LIKE '{_FORCE}%'"
    rows = tx.rows(sql, ids=bind_rows([task_id for task_id, _ in asked]))
    return {(row[0], int(row[1].removeprefix(_FORCE))) for row in rows} & set(asked)


_CANCEL_REQUESTS = (
    f"SELECT id, claim FROM schedd_tasks WHERE worker = :worker AND {HELD} AND cancel_requested IS NOT NULL"
)
_CLAIM_COLUMNS: Columns = (("id", int), ("claim", int))
_CANCEL_REQUESTS_PG = (
    "WITH {rows} SELECT t.id, t.claim FROM j JOIN schedd_tasks t ON t.id = j.id WHERE {among t} "
    f"{fence(IS_HELD)} AND t.cancel_requested IS NOT NULL"
)


def cancel_requests(tx: Tx, worker: int, held: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of this worker's claims ``held`` (id, claim) that were asked to end.

    On PostgreSQL by their ids: behind an old snapshot the index of what is held lists all that the worker ever held.
    """
    if tx.dialect.name == "sqlite":
        rows = tx.rows(_CANCEL_REQUESTS, worker=worker)
    else:
        rows = run_over(tx, _CANCEL_REQUESTS_PG, _CLAIM_COLUMNS, held, worker=worker)
    return [(row[0], row[1]) for row in rows]
