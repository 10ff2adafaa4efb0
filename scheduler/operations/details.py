"""Tasks for people: of one why it does not run, what it has been through, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints, waits
from scheduler.store.durable.checkpoints import CheckpointRecord
from scheduler.store.durable.waits import WaitRecord
from scheduler.store.graph import spawned
from scheduler.store.graph.spawned import ChildRecord
from scheduler.store.placements import PlacementRecord, placements_of
from scheduler.store.read import audit, workers
from scheduler.store.read.audit import AuditRecord
from scheduler.store.read.explain import runs_text
from scheduler.store.read.explain import whys as whys
from scheduler.store.read.graph import EdgeRecord, dependencies
from scheduler.store.read.graph import dependents as dependents
from scheduler.store.read.history import AttemptRecord as AttemptRecord
from scheduler.store.read.history import attempt_log as attempt_log
from scheduler.store.read.history import attempt_logs as attempt_logs
from scheduler.store.read.history import attempts as attempts
from scheduler.store.read.history import stack_of, standing_of
from scheduler.store.read.search import any_with as any_with
from scheduler.store.read.tasks import TaskRecord as TaskRecord
from scheduler.store.read.tasks import ends as ends
from scheduler.store.read.tasks import get_task as get_task
from scheduler.store.read.tasks import get_tasks as get_tasks
from scheduler.store.read.tasks import removed_at as removed_at
from scheduler.store.read.why_chain import whole_why as whole_why
from scheduler.store.read.why_chain import why_chain as why_chain
from scheduler.store.read.workers import WorkerRecord
from scheduler.store.tasks.attempts import AttemptStanding


class TaskDetails(NamedTuple):
    """``task``: as it stands at ``at``; ``worker``: that holds it; ``stack``: where its handler hangs or stands.

    ``children``: some of the tasks that it spawned, of ``child_count``; ``audit``: the newest entries.
    """

    at: int
    task: TaskRecord
    worker: WorkerRecord | None
    depends_on: list[EdgeRecord]
    dependents: list[EdgeRecord]
    attempts: list[AttemptRecord]
    children: Sequence[ChildRecord]
    child_count: int
    placements: Sequence[PlacementRecord]
    recorded: Sequence[CheckpointRecord]
    waits: Sequence[WaitRecord]
    audit: Sequence[AuditRecord]
    stack: str | None
    standing: AttemptStanding | None

    @property
    def runs(self) -> str:
        """How long it has run, and when it last said so."""
        return runs_text(self.task.state, self.task.started_at, self.task.last_heartbeat_at, self.at)


def details(tx: Tx, task: TaskRecord, *, children: int, entries: int = 1000) -> TaskDetails:
    """What is stored of a task and around it. ``children``, ``entries``: how many at most of these."""
    stack = standing = worker = None
    if task.worker is not None:
        worker = next((one for one in workers.workers(tx) if one.id == task.worker), None)
        stack, standing = stack_of(tx, task.id, task.claim), standing_of(tx, task.id, task.claim)
        if stack is None and standing is not None:
            stack = standing.stack
    found, count = spawned.records(tx, task.id, children)
    return TaskDetails(
        tx.now,
        task.at(tx.now),
        worker,
        dependencies(tx, task.id),
        dependents(tx, task.id),
        attempts(tx, task.id),
        found,
        count,
        placements_of(tx, task.id),
        checkpoints.records(tx, task.id),
        [] if task.state.terminal else waits.records(tx, task.id),
        audit.of_task(tx, task.id, entries),
        stack,
        standing,
    )


def reason(tx: Tx, task: TaskRecord) -> str | None:
    """Why a task does not run, or how it ended; of one that runs, for how long."""
    return whole_why(tx, task.id) or runs_text(task.state, task.started_at, task.last_heartbeat_at, tx.now)
