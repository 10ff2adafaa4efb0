"""Spawns tasks and awaits their ends for a handler; see ``handle.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler.errors import ResultExpiredError, SchedulerError, TaskCancelledError, TaskFailedError
from scheduler.model.checkpoint import CheckpointType, failure_of
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.state import FIRST_TERMINAL, TaskState
from scheduler.ports import FOREVER
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints, waits
from scheduler.store.durable.checkpoints import CheckpointEntry
from scheduler.store.durable.waits import StoredWait
from scheduler.store.graph import spawned
from scheduler.store.graph.spawned import SpawnedEnd
from scheduler.store.requests.request import Answer, AttemptRequest, Work
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.unknown import unknown

_LOCK_TIMEOUT = "20ms"  # that a cycle waits on PostgreSQL for a row or a key that a child needs
_SET_LOCK_TIMEOUT = f"SELECT current_setting('lock_timeout'), set_config('lock_timeout', '{_LOCK_TIMEOUT}', true)"


def spawn(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    """Store the tasks that handlers spawn. Answers their ids, and whether each is new; or an error.

    ``specs``: tasks; ``group``: the name under which all of them will be awaited, if they will.
    """
    specs = [[msgspec.convert(spec, TaskSpec) for spec in a.args["specs"]] for a in asked]
    plain = [i for i, mine in enumerate(specs) if not any(spec.key is not None or spec.edges for spec in mine)]
    made: dict[int, list[TaskId]] = {}
    answers: list[Answer | None] = [None] * len(asked)
    ids = enqueue(work.tx, [spec for i in plain for spec in specs[i]]) if plain else []
    for i in plain:
        made[i], ids = ids[: len(specs[i])], ids[len(specs[i]) :]
    for i, mine in enumerate(specs):
        if i not in made:
            try:
                found = _enqueue_isolated(work, mine)
            except SchedulerError as error:
                answers[i] = {"error": failure_of(error)}
                continue
            if found is not None:
                made[i] = found
    _store(work, {i: (asked[i], mine) for i, mine in sorted(made.items())}, answers)
    return answers


def _enqueue_isolated(work: Work, specs: Sequence[TaskSpec]) -> list[TaskId] | None:
    """Store tasks that may be refused; None if another transaction holds what they need."""
    tx = work.tx
    postgres = tx.dialect.name == "postgresql"
    usual = ""
    try:
        with tx.connection.begin_nested():
            if postgres:
                usual, _ = tx.run(_SET_LOCK_TIMEOUT).one()
            made = enqueue(tx, specs)
            if postgres:
                tx.run("SELECT set_config('lock_timeout', :usual, true)", usual=usual)
        return made
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        return None


def _store(work: Work, made: dict[int, tuple[AttemptRequest, list[TaskId]]], answers: list[Answer | None]) -> None:
    adopted: list[tuple[int, int]] = []
    entries: list[CheckpointEntry] = []
    heads: list[StoredWait] = []
    items: list[tuple[int, str, int]] = []
    for i, (a, ids) in made.items():
        adopted += [(task_id, a.task_id) for task_id in ids if task_id.created]
        value = msgspec.json.encode([[int(task_id), task_id.created] for task_id in ids]).decode()
        entries.append(
            CheckpointEntry(
                a.task_id, a.claim, a.args["name"], CheckpointType.SPAWN, a.args["seq"], value, note=a.args.get("note")
            )
        )
        answers[i] = {"value": value}
        group = a.args.get("group")
        if group is not None:
            heads.append(StoredWait(a.task_id, group, None, FOREVER, a.claim))
            items += [(a.task_id, group, int(task_id)) for task_id in ids if task_id.created]
    if adopted:
        spawned.adopt(work.tx, adopted)
    checkpoints.write(work.tx, entries)
    waits.register(work.tx, list({(h.task_id, h.name): h for h in heads}.values()))
    waits.register_items(work.tx, items)
    work.woken += len(adopted)


def await_tasks(work: Work, asked: Sequence[AttemptRequest]) -> list[Answer | None]:
    """Await the ends of tasks. Answers a value or failure, or ``until``.

    ``items``: ids; ``timeout``: microseconds, None: for ever. One task's result or failure is the value; of several
    (``many``) it is that they have ended. ``stale``: that is recorded, but one of them lives again.
    """
    checkpoints.drop(work.tx, [a.label for a in asked if a.args.get("stale")])
    ends = waits.deadlines(work.tx, [a.label for a in asked])
    progress = waits.progress(work.tx, [a.label for a in asked])
    answers: list[Answer | None] = []
    entries: list[CheckpointEntry] = []
    for a in asked:
        timeout = a.args["timeout"]
        until = ends.get(a.label, FOREVER if timeout is None else work.tx.now + timeout)
        # A task that had ended before the wait began is in time, even if the clock was set back since.
        in_time = ends.get(a.label, FOREVER)
        given = _await(work, a, until, in_time, progress.get(a.label, (0, 0)))
        answers.append(given)
        if given is not None and ("value" in given or "failure" in given):
            entry = CheckpointEntry(
                a.task_id, a.claim, a.args["name"], CheckpointType.TASK, a.args["seq"], note=a.args.get("note")
            )
            entries.append(entry._replace(value=given.get("value"), failure=given.get("failure")))
    checkpoints.write(work.tx, entries)
    waits.end(work.tx, [(e.task_id, e.name) for e in entries])
    return answers


def _await(work: Work, a: AttemptRequest, until: int, in_time: int, progress: tuple[int, int]) -> Answer | None:
    items: list[int] = a.args["items"]
    rows, still_open = progress
    live: set[int] | None = set()
    if rows < len(set(items)) or not still_open:
        live = _living(work, items)  # not all of them are being waited for, or all have ended, it seems
    if live is None:
        return None  # another transaction is ending one of them
    if not live and not still_open:
        return _ended(work, a, in_time)
    if until <= work.tx.now:
        subject = f"task {items[0]} has" if len(items) == 1 else f"{len(live) or still_open} of {len(items)} tasks have"
        return _failed(TimeoutError(f"{subject} not ended in time"))
    waits.register(work.tx, [StoredWait(*a.label, None, until, a.claim)])
    waits.register_items(work.tx, [(*a.label, i) for i in sorted(live)])
    return {"until": until}


def _living(work: Work, ids: Iterable[int]) -> set[int] | None:
    """Those that have not ended, held so until the commit; None if another transaction holds one."""
    wanted = bind_rows(sorted(set(ids)))
    sql = (
        f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {work.tx.dialect.ids()} AND t.state < {FIRST_TERMINAL} "
        "ORDER BY t.id"
    )
    held = {row[0] for row in work.tx.run(f"{sql} {work.tx.dialect.share_free}", ids=wanted)}
    if work.tx.dialect.share_free:
        seen = {row[0] for row in work.tx.run(sql, ids=wanted)}
        if seen - held:
            return None
    return held


def _ended(work: Work, a: AttemptRequest, in_time: int) -> Answer | None:
    items: list[int] = a.args["items"]
    if a.args.get("many"):
        return {"value": "true"}
    (task_id,) = items
    end = spawned.ends(work.tx, [task_id]).get(task_id)
    if end is None:
        return {"error": failure_of(unknown(work.tx, task_id))}
    if not end.state.terminal:
        return None  # another transaction has just opened it again
    if end.finished_at is not None and end.finished_at > in_time:
        return _failed(TimeoutError(f"task {task_id} has not ended in time"))
    error = error_of(end)
    return {"value": end.result} if error is None else _failed(error)


def error_of(end: SpawnedEnd) -> Exception | None:
    """What awaiting a task that has ended raises."""
    if end.state is TaskState.CANCELLED:
        return TaskCancelledError(end.id)
    if end.state is not TaskState.SUCCESS:
        return TaskFailedError(end.id, end.error)
    return ResultExpiredError(end.id) if end.removed or end.expired else None


def _failed(error: Exception) -> dict[str, Any]:
    return {"failure": msgspec.json.encode(failure_of(error)).decode()}


def results(tx: Tx, ids: Sequence[int]) -> list[tuple[str | None, Any]] | None:
    """What tasks that have ended returned, in this order: rows (JSON text, failure); None if one has not ended."""
    found = spawned.ends(tx, ids)
    if any(not end.state.terminal for end in found.values()):
        return None
    rows: list[tuple[str | None, Any]] = []
    for task_id in ids:
        end = found.get(task_id)
        error = unknown(tx, task_id) if end is None else error_of(end)
        rows.append((end.result if end else None, None) if error is None else (None, failure_of(error)))
    return rows
