"""What a task has behind it: its attempts, what they wrote, its result."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.errors import ResultExpiredError, TaskCancelledError, TaskFailedError
from scheduler.model.envelope import Envelope
from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.attempts import AttemptStanding, stack_name, standing_name
from scheduler.store.tasks.envelopes import envelope_of, kept
from scheduler.store.unknown import unknown

if TYPE_CHECKING:
    import sqlalchemy as sa

_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")  # as the engine captures a record of ``logging``
_TRACEBACKS = ("Traceback (most recent call last):", "  + Exception Group Traceback")
_CHAINED = ("another exception occurred:", "direct cause of the following exception:")


class AttemptRecord(NamedTuple):
    """One attempt that has ended. ``worker`` is ``host:pid``; times are microseconds."""

    claim: int
    number: int
    worker: str
    worker_id: int
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: AttemptEnd
    error: str | None
    error_class: str | None
    fingerprint: str | None
    status_code: int | None
    envelope: Envelope
    trace: str | None = None


def attempts(tx: Tx, task_id: int) -> list[AttemptRecord]:
    """The attempts of a task that have ended, oldest first."""
    present = envelope_of(tx, task_id)
    if present is None:
        return []
    rows = tx.run(
        "SELECT a.*, w.host, w.pid FROM schedd_attempts a LEFT JOIN schedd_workers w ON w.id = a.worker "
        "WHERE a.task_id = :id ORDER BY a.claim",
        id=task_id,
    )
    return [_attempt(row, present) for row in rows if row.outcome in range(len(AttemptEnd))]


def _attempt(row: sa.Row[Any], present: Envelope) -> AttemptRecord:
    values: dict[str, Any] = {name: getattr(row, name, None) for name in AttemptRecord._fields}
    values |= {
        "worker": f"worker {row.worker}" if row.host is None else f"{row.host}:{row.pid}",
        "worker_id": row.worker,
        "outcome": AttemptEnd.from_code(row.outcome),
        "envelope": kept(row.envelope, present),
    }
    return AttemptRecord(**values)


class FailedAttempt(NamedTuple):
    """An attempt that failed, also one that was retried since. ``worker`` is ``host:pid``; times are microseconds."""

    task_id: int
    kind: str
    claim: int
    number: int
    worker: str
    started_at: int | None
    finished_at: int
    outcome: AttemptEnd
    error: str | None
    error_class: str | None
    fingerprint: str | None


# The condition is that of the index, verbatim.
_FAILED = (
    "SELECT a.task_id, t.kind, a.claim, a.number, a.worker, w.host, w.pid, a.started_at, a.finished_at, a.outcome, "
    "a.error, a.error_class, a.fingerprint FROM schedd_attempts a JOIN schedd_tasks t ON t.id = a.task_id "
    "LEFT JOIN schedd_workers w ON w.id = a.worker WHERE a.outcome >= 1 AND a.outcome <= 3 "
    "AND a.finished_at >= :since AND a.finished_at < :until"
)


def failed_attempts(tx: Tx, since: int, until: int, limit: int, kind: str | None = None) -> list[FailedAttempt]:
    """Up to ``limit`` attempts that failed in this time (microseconds) and whose tasks are stored, the latest first."""
    sql, bound = _FAILED, {"since": since, "until": until, "limit": limit}
    if kind is not None:
        sql += " AND t.kind = :kind"
    rows = tx.run(
        f"{sql} ORDER BY a.finished_at DESC LIMIT :limit", **(bound if kind is None else {**bound, "kind": kind})
    )
    return [
        FailedAttempt(
            *(r.task_id, r.kind, r.claim, r.number),
            f"worker {r.worker}" if r.host is None else f"{r.host}:{r.pid}",
            *(r.started_at, r.finished_at, AttemptEnd.from_code(r.outcome), r.error, r.error_class, r.fingerprint),
        )
        for r in rows
    ]


def attempt_logs(tx: Tx, task_id: int, after: int = 0) -> list[tuple[int, str]]:
    """(claim, text) of every attempt that wrote something and whose claim is above ``after``."""
    rows = tx.run("SELECT name, value FROM schedd_task_values WHERE task_id = :id AND name LIKE 'log:%'", id=task_id)
    found = [(int(row.name.removeprefix("log:")), str(row.value)) for row in rows]
    return sorted(entry for entry in found if entry[0] > after)


def attempt_log(tx: Tx, task_id: int) -> str | None:
    """What the last attempt wrote that wrote something."""
    found = attempt_logs(tx, task_id)
    return found[-1][1] if found else None


def traceback_in(text: str | None) -> str | None:
    """The last traceback in what an attempt wrote, with those of its causes; None if there is none."""
    found: list[list[str]] = []
    before, goes_on = "", False
    for line in ("" if text is None else text).splitlines():
        if _LOG_LINE.match(line):
            goes_on = False
        elif line.startswith(_TRACEBACKS) and not (goes_on and before.endswith(_CHAINED)):
            found.append([])
            goes_on = True
        if goes_on:
            found[-1].append(line)
        before = line or before
    return "\n".join(found[-1]) if found else None


def stack_of(tx: Tx, task_id: int, claim: int) -> str | None:
    """Where the handler of this claim hangs, or hung; None if it never did."""
    return _value_of(tx, task_id, stack_name(claim))


def _value_of(tx: Tx, task_id: int, name: str) -> str | None:
    rows = tx.run("SELECT value FROM schedd_task_values WHERE task_id = :id AND name = :name", id=task_id, name=name)
    return rows.scalar()


def standing_of(tx: Tx, task_id: int, claim: int) -> AttemptStanding | None:
    """Where the handler of this claim has stood for a minute or longer; None if it moves, or did when last seen."""
    text = _value_of(tx, task_id, standing_name(claim))
    try:
        return None if text is None else msgspec.json.decode(text, type=AttemptStanding | None)
    except msgspec.MsgspecError:
        return None


def result_of(tx: Tx, task_id: int) -> Any:
    """What the task returned, until its time is over (microseconds).

    Raises UnknownTaskError, TaskFailedError (also for a skipped one), TaskCancelledError, ResultExpiredError,
    and TimeoutError while it has not ended.
    """
    row = tx.run(
        "SELECT t.state, t.result_until, t.error, coalesce(t.result, v.value) AS text FROM schedd_tasks t "
        "LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'result' WHERE t.id = :id",
        id=task_id,
    ).first()
    if row is None:
        gone = tx.run("SELECT state FROM schedd_outcomes WHERE task_id = :id", id=task_id).scalar()
        if gone is None:
            raise unknown(tx, task_id)
        _raise_unless_success(task_id, TaskState.from_code(gone), "its row has been removed")
        raise ResultExpiredError(task_id)
    state = TaskState.from_code(row.state)
    if not state.terminal:
        raise TimeoutError(f"task {task_id} has not ended: it is {state}")
    _raise_unless_success(task_id, state, row.error)
    # Of one that returned nothing retention has forgotten the time, when it was over.
    expired = row.text is None if row.result_until is None else row.result_until <= tx.now
    if expired:
        raise ResultExpiredError(task_id)
    return None if row.text is None else msgspec.json.decode(row.text)


def _raise_unless_success(task_id: int, state: TaskState, error: str | None) -> None:
    if state is TaskState.CANCELLED:
        raise TaskCancelledError(task_id)
    if state is not TaskState.SUCCESS:
        raise TaskFailedError(task_id, error)
