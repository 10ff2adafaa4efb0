"""One sentence on why a task is not running, from the same predicates that claim."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scheduler.errors import UnknownTaskError
from scheduler.model.defaults import POOLS
from scheduler.model.lanes import delay_of
from scheduler.model.placement import PlacementState
from scheduler.model.policy import TOO_LONG, TOO_SLOW
from scheduler.model.state import TaskState
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.ports import FOREVER
from scheduler.store import pauses
from scheduler.store.db.tx import Tx
from scheduler.store.db.writable import no_writes
from scheduler.store.durable import deadlocks, waits
from scheduler.store.placements import PlacementRecord
from scheduler.store.read import audit, executors, slot_usage
from scheduler.store.read.graph import dependencies
from scheduler.store.read.history import standing_of
from scheduler.store.read.ready import CLOCK_AHEAD, cause_of, due_since, unserved_reason
from scheduler.store.read.stuck_workers import at
from scheduler.store.read.workers import GONE, LOST, Fleet, WorkerRecord, failing_text, fleet_of, workers
from scheduler.store.tasks import keys, stalls
from scheduler.store.unknown import unknown

if TYPE_CHECKING:
    import sqlalchemy as sa

_ROW = (
    "SELECT t.id, t.claim, t.kind, t.schema_version, t.state, t.queue, t.priority, t.lane, t.unmet, t.run_at, "
    "t.attempt, t.attempt_base, t.max_attempts, t.created_at, t.claimed_at, t.started_at, t.finished_at, "
    "t.result_until, t.timeout, t.cancel_requested, t.rerun, t.worker, t.error, t.error_class, t.ended_by, t.key, "
    "w.host, w.pid FROM schedd_tasks t LEFT JOIN schedd_workers w ON w.id = t.worker WHERE t.id = :id"
)


class _Fleet:
    """The workers, read when first asked for, for one answer or for several."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    @cached_property
    def workers(self) -> list[WorkerRecord]:
        return workers(self._tx)

    @cached_property
    def fleet(self) -> Fleet:
        return fleet_of(self._tx, self.workers)


def why(tx: Tx, task_id: int) -> str | None:
    """Why the task is not running, or how it ended; None if it runs and nothing is amiss.

    Raises UnknownTaskError.
    """
    return _why(tx, task_id, _Fleet(tx))


def whys(tx: Tx, ids: Iterable[int]) -> dict[int, str | None]:
    """:func:`why` of several tasks, for which the workers are read once; those that are not there are left out."""
    known, found = _Fleet(tx), {}
    for task_id in ids:
        try:
            found[task_id] = _why(tx, task_id, known)
        except UnknownTaskError:
            continue
    return found


def _why(tx: Tx, task_id: int, known: _Fleet) -> str | None:
    row = tx.run(_ROW, id=task_id).first()
    if row is None:
        raise unknown(tx, task_id)
    if row.state not in range(len(TaskState)):
        return f"its state {row.state} is unknown: `schedctl doctor` tells what to do"
    state = TaskState.from_code(row.state)
    if state.terminal:
        return f"{_ended(row, state, tx.now)}{_by_whom(tx, row, state)}{_key(tx, row, state)}"
    reason, refused = _unended(tx, row, state, known), no_writes(tx)
    return reason if refused is None else refused if reason is None else f"{refused}; {reason}"


def _unended(tx: Tx, row: sa.Row[Any], state: TaskState, known: _Fleet) -> str | None:
    if state is TaskState.WAITING:
        return _waiting(tx, row)
    if state in (TaskState.CLAIMED, TaskState.RUNNING):
        reason = _held(tx, row, state, {w.id: w for w in known.workers})
        again = "it was replaced, and runs once more as what it is now when this attempt has ended"
        return reason if row.rerun != 1 else again if reason is None else f"{reason}; {again}"
    fleet = known.fleet
    if row.run_at > tx.now:
        awaited = _awaited(tx, row.id) if state is TaskState.SUSPENDED else ""
        return f"{_later(row, state, tx.now, fleet, awaited)}{_ahead(row, tx.now)}{_paused_later(tx, row)}"
    return f"{due_since(tx, row)}{cause_of(tx, row, fleet).words}{_short_first(row)}"


def _short_first(row: sa.Row[Any]) -> str:
    """Its graph's place where short graphs go first; empty elsewhere."""
    delay = delay_of(row.lane)
    if delay is None:
        return ""
    return f"; short graphs go first: with the work of its graph it goes as if due {span_text(delay)} later"


def _ended(row: sa.Row[Any], state: TaskState, now: int) -> str:
    at = rfc3339(row.finished_at, exact=False) if row.finished_at is not None else "an unknown time"
    if state is TaskState.SUCCESS:
        if row.result_until is None or row.result_until > now:
            return f"succeeded at {at}"
        return f"succeeded at {at}; its result expired at {rfc3339(row.result_until, exact=False)}"
    if state is TaskState.CANCELLED:
        return f"cancelled at {at}{_by_policy(row)}"
    error = row.error or "no error recorded"
    if row.ended_by is not None:
        return f"ended {state} at {at}, {error}"
    return f"ended {state} at {at} after {counted(row.attempt, 'attempt')}: {error}"


def _by_whom(tx: Tx, row: sa.Row[Any], state: TaskState) -> str:
    """Who cancelled it, and why; empty where no person did: its parent's end, or a policy of its own."""
    if state is not TaskState.CANCELLED or row.ended_by is not None or row.cancel_requested is None:
        return ""
    entry = audit.last(tx, row.id, "cancel")
    return "" if entry is None or entry.at < row.cancel_requested else f" {audit.by(entry)}"


def _key(tx: Tx, row: sa.Row[Any], state: TaskState) -> str:
    """Why it cannot be retried under its key, if that is so, and what to do then."""
    if row.key is None or state is TaskState.SUCCESS:
        return ""
    ended = keys.EndedTask(row.id, row.kind, row.key, row.finished_at)
    other = keys.others(tx, [ended]).get(row.id)
    if other is None:
        return ""
    verb = "has completed under" if other.completed else "holds"
    remedy = "schedule it anew under another key"
    if state is TaskState.DEAD:
        remedy = f"`schedctl dlq replay {row.id} --copy` runs it under another one"
    return f"; task {other.id} {verb} its key {row.key!r}, so a retry is refused: {remedy}"


def _by_policy(row: sa.Row[Any]) -> str:
    return f": it {row.error}" if row.error_class in (TOO_LONG, TOO_SLOW) else ""


def _waiting(tx: Tx, row: sa.Row[Any]) -> str:
    edges = dependencies(tx, row.id)
    # What lives comes first: it is what moves by itself. The rest can only move by a retry.
    unmet = sorted((e for e in edges if not e.satisfied), key=lambda e: (e.state.terminal, e.parent))
    if not unmet:
        return f"waiting for {counted(row.unmet, 'task')} by its count, yet none is open: run `schedctl doctor`"
    names = listed([f"{e.parent} ({e.state})" for e in unmet])
    text = f"waits for {len(unmet)} of {counted(len(edges), 'task')}: {names}"
    done = next((e.parent for e in unmet if e.state is TaskState.SUCCESS), None)
    if done is not None:  # it waits for a failure that does not come: a success is not retried
        text += f"; task {done} has succeeded, which stays: cancel this one"
    elif all(e.state.terminal for e in unmet):
        text += "; stays until they are retried and succeed" if len(unmet) > 1 else "; stays until it is retried"
    return text


def _held(tx: Tx, row: sa.Row[Any], state: TaskState, alive: dict[int, WorkerRecord]) -> str | None:
    worker = f"worker {row.host}:{row.pid}" if row.host is not None else f"worker {row.worker}"
    holder = alive.get(row.worker)
    placement = executors.latest(tx, row.id, row.claim) if holder is None else None
    if placement is not None and placement.state in (PlacementState.RESERVED, PlacementState.SUBMITTED):
        return _placed(tx, row, placement)
    if holder is not None and holder.state == GONE:
        return f"held by {worker}, whose process is gone; the next live worker takes it back"
    if holder is None or holder.state == LOST:
        since = f" at {rfc3339(holder.lease_until, exact=False)}" if holder is not None else ""
        return f"held by {worker}, which lost its lease{since}; the next live worker takes it back"
    if (failing := failing_text(holder)) is not None:
        return failing
    hung = _hung(row, holder, tx.now)
    if row.cancel_requested is not None:
        entry = audit.last(tx, row.id, "cancel")
        asked = rfc3339(row.cancel_requested, exact=False) + (f" {audit.by(entry)}" if entry is not None else "")
        return f"cancel requested at {asked}{_by_policy(row)}; it ends when its handler on {worker} notices" + (
            f"; {hung}" if hung is not None else ""
        )
    if hung is not None:
        return hung
    if state is TaskState.CLAIMED:
        at = rfc3339(row.claimed_at, exact=False)
        return f"claimed by {worker} at {at}; starts there at the next free slot"
    if row.timeout is not None and row.started_at is not None and row.started_at + row.timeout < tx.now:
        ran = span_text(tx.now - row.started_at)
        return (
            f"overdue: running on {worker} for {ran}, over its timeout of {span_text(row.timeout)}; "
            "it ends when its handler has ended, with what that has in threads"
        )
    quiet = next((one for one in stalls.stalled(tx) if one.id == row.id), None)
    if quiet is not None:
        return (
            f"stalled: running on {worker} without a heartbeat for {span_text(quiet.quiet)}, "
            f"over its kind's {span_text(quiet.stall_after)}: {stalls.remedy(str(row.id))}"
        )
    return _unmoved(tx, row, holder)


def _unmoved(tx: Tx, row: sa.Row[Any], holder: WorkerRecord) -> str | None:
    """That its handler does not move, since when and where; None if it does."""
    told = next((one for one in holder.unmoved if (one.task, one.claim) == (row.id, row.claim)), None)
    found = told or standing_of(tx, row.id, row.claim)
    if found is None:
        return None
    since = f"since {rfc3339(found.since, exact=False)} ({span_text(tx.now - found.since)})"
    runs = "" if row.started_at is None else f" since {rfc3339(row.started_at, exact=False)}"
    text = f"it runs on worker {holder.label}{runs}, and has not moved {since}{at(found.where)}"
    return text if told is None else f"{text}; if it hangs, `schedctl cancel --force {row.id}` ends it"


def runs_text(state: TaskState, started_at: int | None, heartbeat_at: int | None, now: int) -> str:
    """What to say of a task that :func:`why` has nothing to say of, since it runs."""
    if state is not TaskState.RUNNING or started_at is None:
        return "it is running"
    since = f"it is running since {rfc3339(started_at, exact=False)} ({span_text(now - started_at)})"
    return (
        since if heartbeat_at is None else f"{since}; its last sign of life was at {rfc3339(heartbeat_at, exact=False)}"
    )


def _placed(tx: Tx, row: sa.Row[Any], placement: PlacementRecord) -> str:
    """Where a task is whose job has not begun."""
    text = executors.describe(placement, tx.now)
    if row.cancel_requested is not None:
        text = f"cancel requested at {rfc3339(row.cancel_requested, exact=False)}; {text}"
    trouble = executors.unplaced(executors.executor_statuses(tx), placement.executor)
    return text if trouble is None else f"{text}; {trouble}"


def _hung(row: sa.Row[Any], holder: WorkerRecord, now: int) -> str | None:
    """That its handler hangs, or stands still because another one does; with what can be done. None if not."""
    for hang in holder.hung:
        since = rfc3339(hang.since, exact=False)
        if (hang.task, hang.claim) == (row.id, row.claim):
            if hang.blocks:
                loop = f"the event loop of {POOLS[hang.priority]} tasks on worker {holder.label}"
                return f"it blocks {loop} since {since}: {hang.remedy(holder.id)}"
            limit = (
                "its worker's default timeout" if row.timeout is None else f"its timeout of {span_text(row.timeout)}"
            )
            ran = span_text(now - (row.started_at or row.claimed_at))
            where = f"running on worker {holder.label} for {ran}"
            return f"overdue: {where}, over {limit}; its handler hangs: {hang.remedy(holder.id)}"
        if (row.id, row.claim) in hang.behind:
            by = f"task {hang.task}" if hang.task else "something that a handler left behind"
            return f"it cannot go on: the event loop is blocked by {by} since {since}: {hang.remedy(holder.id)}"
    return None


def _awaited(tx: Tx, task_id: int) -> str:
    """What a suspended task waits for: ``event 'approved'``, ``task 12``, ``3 of 10 tasks``; empty: only its time."""
    awaited, found = [], waits.records(tx, task_id)
    for wait in found:
        if wait.event is not None:
            awaited.append(f"event {wait.event!r}")
        elif wait.task is not None:
            awaited.append(f"task {wait.task}")
        else:
            awaited.append(f"{wait.open} of {counted(wait.items, 'task')}")
    text = listed(awaited)
    cycle = deadlocks.through(tx, task_id) if any(wait.event is None for wait in found) else []
    return f"{text}; {deadlocks.describe(cycle)}" if cycle else text


def _later(row: sa.Row[Any], state: TaskState, now: int, fleet: Fleet, awaited: str) -> str:
    if row.run_at >= FOREVER:
        return (
            f"suspended, awaits {awaited}" if awaited else "suspended, but no wait is recorded: run `schedctl doctor`"
        )
    at = f"{rfc3339(row.run_at, exact=False)} (in {span_text(row.run_at - now)})"
    unserved = unserved_reason(row, fleet)
    beside = slot_usage.previous_attempt(fleet, row)
    tail = f"; at present {unserved}" if unserved is not None else f"; {beside}" if beside is not None else ""
    if state is TaskState.RETRY:
        most = "" if row.max_attempts is None else f" of {row.max_attempts}"
        error = row.error or "no error recorded"
        return f"attempt {row.attempt - row.attempt_base}{most} failed, the next is due at {at}{tail}: {error}"
    if state is TaskState.SUSPENDED:
        return f"suspended until {at}{tail}" + (f", awaits {awaited}" if awaited else "")
    return f"due at {at}{tail}"


def _ahead(row: sa.Row[Any], now: int) -> str:
    """That it is due by a clock only that was ahead; empty if not."""
    late = now + CLOCK_AHEAD
    if row.run_at <= late or row.run_at >= FOREVER or max(row.created_at, row.claimed_at or 0) <= late:
        return ""
    return f"; a clock was ahead when that was set: `schedctl cancel {row.id}` and `schedctl retry {row.id}` run it now"


def _paused_later(tx: Tx, row: sa.Row[Any]) -> str:
    paused = pauses.of_task(tx, row.queue, row.kind)
    return "" if paused is None else f"; at present {paused.describe()}"
