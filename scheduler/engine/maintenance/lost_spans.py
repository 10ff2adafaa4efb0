"""Spans of attempts whose worker died or lost its lease: the worker that takes their tasks back writes them.

The old worker, if it lives, writes none: its outcome is refused by the fence, and a refused outcome has no span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.state import SCHEDULED
from scheduler.store.db.tx import Tx
from scheduler.store.read.tasks import get_tasks
from scheduler.store.tasks import traces
from scheduler.store.tasks.claim import Claimed

if TYPE_CHECKING:
    from scheduler.store.read.tasks import TaskRecord
    from scheduler.store.reaper import LostAttempt, Reclaimed
    from scheduler.telemetry.attempt_trace import AttemptTrace
    from scheduler.telemetry.otel import Tracing

WORKER_DIED = "WorkerDied"  # the class of error that the store records for them


class Lost:
    """An attempt as its span needs it."""

    def __init__(self, claimed: Claimed, outcome: Outcome, process: str) -> None:
        self.claimed = claimed
        self.outcome = outcome
        self.process = process
        self.trace: AttemptTrace | None = None


def store(tx: Tx, tracing: Tracing, found: Sequence[Reclaimed]) -> list[Lost]:
    """Choose which of these attempts are traced, and store the ids of their spans; in the reaper's transaction."""
    chosen: list[Lost] = []
    for one in found:
        if not one.lost:
            continue
        tasks = {task.id: task for task in get_tasks(tx, [lost.task_id for lost in one.lost])}
        of_worker = [
            _lost(tasks[lost.task_id], lost, one.process, tx.now) for lost in one.lost if lost.task_id in tasks
        ]
        traced = [attempt for attempt in of_worker if tracing.choose_late(attempt, attempt.outcome)]
        tracing.chosen -= len(traced)  # it counts those that dispatch has yet to write
        ids = [(a.claimed.id, a.claimed.claim, a.trace.context.traceparent) for a in traced if a.trace is not None]
        traces.write(tx, one.worker, ids)
        chosen += traced
    if chosen:
        linked = traces.linked(tx, [(a.claimed.id, a.claimed.claim) for a in chosen])
        for attempt in chosen:
            if attempt.trace is not None:
                attempt.trace.linked = linked.get(attempt.claimed.id)
    return chosen


def write(tracing: Tracing, chosen: Sequence[Lost]) -> None:
    """Write their spans, after the commit."""
    for attempt in chosen:
        tracing.write(attempt, attempt.outcome, attempt.process)


def _lost(task: TaskRecord, lost: LostAttempt, process: str, now: int) -> Lost:
    began = lost.claimed_at if lost.started_at is None else lost.started_at
    failure = Failure("", WORKER_DIED)  # spans have no texts of errors
    outcome = Outcome(
        *(task.id, lost.claim, lost.number, AttemptEnd.LOST, SCHEDULED, lost.claimed_at, began, max(began, now)),
        failure=failure,
    )
    claimed = Claimed(
        id=task.id,
        claim=lost.claim,
        attempt=lost.number,
        attempt_base=task.attempt_base,
        max_attempts=None,
        retry=None,
        timeout=None,
        dead_letter=0,
        payload=None,
        schema_version=task.schema_version,
        key=task.key,
        correlation=task.correlation,
        created_at=task.created_at,
        extras=0,
        run_at=task.run_at,
        queue=task.queue,
        lane=task.lane,
        priority=int(task.priority),
        kind=task.kind,
        claimed_at=lost.claimed_at,
        headers=msgspec.json.encode(task.headers).decode() if task.headers else None,
        schedule=task.schedule,
        slot=task.slot,
    )
    return Lost(claimed, outcome, process)
